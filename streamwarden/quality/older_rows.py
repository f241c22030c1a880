"""Older rows with the keys of new ones: a rule that keys are unique concerns both.

Only the key columns of older files are read, and only of files whose statistics say that they may have such a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from streamwarden.errors import StreamwardenError
from streamwarden.quality.arguments import quoted, row_condition, without_condition
from streamwarden.quality.failing_rows import chosen, own_columns
from streamwarden.quality.older_files import suspects
from streamwarden.quality.sql import BATCH, QueryError, condition_in_duckdb, run
from streamwarden.quality.suites import Expectation
from streamwarden.quality.table_versions import NewFile, NewFiles, TableVersions

__all__ = ["OlderRows", "Repeated"]

_FILES, _SEARCHED = 20, 200
"""Files with repeated keys that a query for failing rows names; and files that are searched for them, one by one."""


@dataclass(frozen=True)
class Repeated:
    """An expectation that older rows break.

    Parameters
    ----------
    expectation
        It, about all rows of `rows`.
    rows
        The new rows that it is about, and the older ones with their keys. Only keys.
    files
        Some older files that have such rows.
    """

    expectation: Expectation
    rows: pa.Table
    files: tuple[NewFile, ...]


class OlderRows:
    """The rows of a version that a range did not add.

    Parameters
    ----------
    versions, version
        The table, and the range's last version.
    added
        The range's files.
    rows
        The range's rows.
    """

    def __init__(self, versions: TableVersions, added: NewFiles, rows: pa.Table, version: int) -> None:
        new = {one.path for one in added.files}
        self._files = [one for one in versions.whole(version).files if one.path not in new]
        self._versions, self._rows, self._version = versions, rows, version

    def repeated(self, expectation: Expectation, keys: Sequence[str]) -> Repeated | None:
        """Return the older rows that break an expectation of unique keys, with the new ones; None if none does.

        Parameters
        ----------
        keys
            Columns that identify a row for a person.

        Raises
        ------
        QueryError
            The keys cannot be compared.
        UnreadableHereError
            Only Spark can read the older rows.
        StreamwardenError
            ``TABLE_DAMAGED``: an older file is missing or is no Parquet.
        """
        names, columns = self._rows.schema.names, own_columns(expectation.arguments)
        if not all(_there(name, names) for name in columns):
            return None
        wanted = list(dict.fromkeys([*columns, *(key for key in keys if _there(key, names))]))
        listed = ", ".join(f"{quoted(name, names)} AS {quoted(name)}" for name in wanted)
        condition = row_condition(expectation.arguments)
        if condition is None and set(wanted) <= set(names):
            fresh = self._rows.select(wanted)
        else:
            fresh = run(f"SELECT {listed} FROM {chosen(expectation.arguments)}", {BATCH: self._rows})
        files, some = suspects(self._versions, self._version, self._files, fresh.select(columns))
        if not files:
            return None
        older = "older" if condition is None else f"(SELECT * FROM older WHERE {condition_in_duckdb(condition)})"
        # Two rows with a null at the same place have one key, as in the expectation.
        same = " AND ".join(f"o.{quoted(name)} IS NOT DISTINCT FROM n.{quoted(name)}" for name in columns)
        search = f"SELECT o.* FROM (SELECT {listed} FROM {older}) AS o SEMI JOIN new AS n ON {same}"
        shared = self._searched(search, files, some)
        if not shared.num_rows:
            return None
        having = (one for one in files[:_SEARCHED] if self._searched(f"{search} LIMIT 1", [one], shared).num_rows)
        plain = expectation.model_copy(update={"arguments": without_condition(expectation.arguments)})
        return Repeated(plain, pa.concat_tables([fresh, shared.cast(fresh.schema)]), tuple(islice(having, _FILES)))

    def _searched(self, search: str, files: Sequence[NewFile], keys: pa.Table) -> pa.Table:
        # A scan, not a table: the older rows need not fit into memory.
        older = self._versions.scan(files, self._version)
        try:
            return run(search, {"older": older, "new": keys})
        except QueryError:
            try:
                older.count_rows()
            except (OSError, pa.ArrowException) as error:
                what = f"{self._versions.name} at version {self._version}: {error}"
                raise StreamwardenError("TABLE_DAMAGED", what) from error
            raise


def _there(name: str, columns: Sequence[str]) -> bool:
    return name in columns or name.split(".")[0] in columns
