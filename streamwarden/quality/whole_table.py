"""Check a whole table at one version in memory, without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from streamwarden.quality.arrow_checker import ArrowChecker
from streamwarden.quality.engine import jsonable
from streamwarden.quality.in_memory import check_counts
from streamwarden.quality.opened_table import OpenedTable, TableUnreadable, judged
from streamwarden.quality.results import ExpectationResult, TableResult
from streamwarden.quality.suites import Suite
from streamwarden.quality.table_versions import check_features

if TYPE_CHECKING:
    from streamwarden.spark.s3 import S3Server

__all__ = ["WholeTable", "open_whole_table"]


@dataclass(frozen=True)
class WholeTable(OpenedTable):
    """A table that delta-rs has opened."""

    opened: DeltaTable | None = None

    def judge(self, checker: ArrowChecker, suite: Suite, built: Any, digest: str) -> TableResult:
        """Return what a suite finds in the table.

        Parameters
        ----------
        checker
            Evaluates the suite.
        suite, built, digest
            The suite, the same of Great Expectations, and its file's digest.
        """
        opened = self.opened

        def check() -> tuple[int, tuple[ExpectationResult, ...]]:
            assert opened is not None
            try:
                rows = opened.to_pyarrow_dataset().to_table()
            except (OSError, DeltaError, pa.ArrowException) as error:
                raise TableUnreadable(_first_line(error)) from error
            return rows.num_rows, tuple(checker.run(suite, built, rows, rows.num_rows)) if rows.num_rows else ()

        return judged(self, suite, digest, check if opened is not None else None)


def open_whole_table(name: str, path: str, version: int | None, s3: S3Server | None) -> WholeTable:
    """Return a table at a version, the newest by default.

    Parameters
    ----------
    name
        The table, for messages.
    path
        Its folder, or its address as Spark writes it.
    version
        The version.
    s3
        The server of addresses on S3.

    Raises
    ------
    UnreadableHereError
        Only Spark can read it: deletion vectors, mapped columns, or more rows than fit into memory.
    """
    began = time.monotonic()

    def seconds() -> float:
        return time.monotonic() - began

    def missing(what: str) -> WholeTable:
        return WholeTable(seconds(), version=version, status="not_found", code="TABLE_NOT_FOUND", what=what)

    try:
        opened = DeltaTable(path.replace("s3a://", "s3://", 1), storage_options=_options(s3))
    except TableNotFoundError:
        return missing(f"{name}: no Delta table at {path}")
    except (DeltaError, OSError) as error:
        return WholeTable(seconds(), version=version, what=f"the table cannot be read: {_first_line(error)}")
    moment = None
    if version is None:
        version = opened.version()
        moment = _committed(opened)
    else:
        try:
            opened.load_as_version(version)
        except (DeltaError, OSError) as error:
            return missing(f"{name}: no version {version} at {path}: {_first_line(error)}")
    check_features(opened)
    files = pa.table(opened.get_add_actions(flatten=True))
    rows, size = (pc.sum(files[name]).as_py() or 0 for name in ("num_records", "size_bytes"))
    check_counts(rows, size)
    return WholeTable(seconds(), opened=opened, version=version, version_time=moment)


def _committed(opened: DeltaTable) -> str | None:
    found = opened.history(1)
    moment = found[0].get("timestamp") if found else None
    return None if moment is None else str(jsonable(datetime.fromtimestamp(moment / 1000, UTC)))


def _options(s3: S3Server | None) -> dict[str, str] | None:
    # Credentials come from the environment, by the variables of Amazon's tools.
    if s3 is None:
        return None
    options = {"AWS_REGION": s3.region}
    if s3.endpoint is not None:
        plain = str(s3.endpoint.startswith("http:")).lower()
        options |= {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": plain}
    return options


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__
