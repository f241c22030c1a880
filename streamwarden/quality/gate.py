"""The gate: check what a table's new versions added, and publish them if they pass.

One decision covers all versions since the last published one. If they pass, readers of the published table see them.
If not, the gate holds them and all later ones until a person decides: see :class:`Gate`. A decision needs no Spark,
unless the range does not fit into memory.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_log import NOTHING, PublishedAt, PublishedLog
from streamwarden.formats.quality_table import QualityTable
from streamwarden.model.gate import Decision, GateRecord, HeldFailure, Hold, Verdict
from streamwarden.model.record import utc_now
from streamwarden.quality.arrow_checker import ArrowChecker
from streamwarden.quality.documents import write_run
from streamwarden.quality.engine import build, import_great_expectations, unevaluated
from streamwarden.quality.failing_rows import failing_rows_query, file_literal
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.older_rows import with_repeated_keys
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult, TableStatus
from streamwarden.quality.spark_rows import judge_by_spark
from streamwarden.quality.sql import BATCH
from streamwarden.quality.suites import Expectation, Suite, load_suite, load_suites
from streamwarden.quality.table_versions import NewFiles, TableVersions, UnreadableHereError
from streamwarden.storage import Conflict, LocalStorage
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace

T = TypeVar("T")

__all__ = ["Gate", "Replayed"]

_log = logging.getLogger(__name__)

ROWS, BYTES = 5_000_000, 512 * 2**20
"""Up to these, rows and bytes of files, a range is checked in memory: it takes about 3 GB then."""
_FAILURES = 20
"""Failed expectations in a hold. 20: the report has all of them, and a document stays small."""
_EXAMPLES = 20
"""Failing rows of an expectation in results and holds. 20: a pattern shows, and a document stays small."""
_FILES = 20
"""Files that a query for failing rows names."""
_RACES = 5


@dataclass(frozen=True)
class Replayed:
    """What another suite decides about a range.

    Parameters
    ----------
    after, version
        The range.
    passed
        Whether it passed when it was decided.
    failed
        The expectations that would hold it.
    """

    after: int
    version: int
    passed: bool
    failed: tuple[str, ...]


class Gate:
    """Decides about tables, one at a time.

    Two processes may decide about one table at once: one of them publishes, and the other decides anew. The first
    decision of a process takes some seconds more, for the import of Great Expectations.

    Parameters
    ----------
    workspace
        Where the tables are.
    expectations
        The folder of suites; a suite is read anew for each decision. Default: beside ``config/``.
    """

    def __init__(self, workspace: Workspace, expectations: Path | None = None) -> None:
        self._workspace = workspace
        self._expectations = expectations or workspace.config.parent / "expectations"
        self._checker: ArrowChecker | None = None
        self._unkept: list[dict[str, Any]] = []

    def keep_results(self) -> int:
        """Append the results of decisions since the last call to the table of results; return how many rows.

        Not done by each decision: a commit of its own would be a file and some milliseconds each. Results of a process
        that is killed before are in its reports only.

        Raises
        ------
        StreamwardenError
            ``QUALITY_TABLE_FAILED``; the next call appends them.
        """
        rows = self._unkept
        done = QualityTable(self._workspace).append(rows)
        self._unkept = self._unkept[len(rows) :]
        return done

    def what_if(self, suite: Suite, *, last: int = 100) -> list[Replayed]:
        """Return what a suite would decide about the ranges that were decided, oldest first. Publishes nothing.

        Parameters
        ----------
        suite
            Of the same table; such as the shipped one with another limit.
        last
            The number of newest ranges. Those whose files or commits are gone are left out.
        """
        versions = TableVersions(self._workspace, suite.name)
        ranges = {
            (row["after"], row["version"]): row["passed"]
            for row in QualityTable(self._workspace).read(suite.name)
            if row["after"] is not None and row["after"] < row["version"]
        }
        found = []
        for (after, version), passed in list(ranges.items())[-last:]:
            try:
                added = versions.whole(version) if after < 0 else versions.added(after, version)
                _, results = self._judge(suite, versions, added, version)
            except StreamwardenError:
                continue
            failed = tuple(item.id for item in results if item.fails_table)
            found.append(Replayed(after, version, passed, failed))
        return found

    @property
    def tables(self) -> list[str]:
        """The tables that have a suite: the gate is for these."""
        return [suite.name for suite in load_suites(self._expectations)]

    def decide(self, table: str, *, again: bool = False, anew: bool = False, idle: bool = False) -> Decision | None:
        """Check the versions that are not published, and publish or hold them; None if there are none.

        Parameters
        ----------
        idle
            If there are none, judge the rules about recent rows again: time may have broken them, as when a table gets
            no new rows. A hold for this ends by itself.
        again
            Also decide about a table that is held: after a correction of its rows.
        anew
            Check all rows of the newest version, and publish that version in place of what was published. Streams
            that read the published table must start again.

        Raises
        ------
        StreamwardenError
            ``TABLE_NOT_FOUND``, ``TABLE_DAMAGED``, ``SUITE_INVALID``, ``GATE_LOG_GONE``, ``PUBLISHED_LOG_DAMAGED`` or
            ``PUBLISHED_TABLE_REPLACED``.
        """
        return self._raced(lambda: self._decide(table, again=again, anew=anew, idle=idle))

    def accept(self, table: str, *, by: str, note: str) -> Decision:
        """Publish the held versions of a table as they are, and only these.

        Parameters
        ----------
        by
            The person who decided.
        note
            Why.

        Raises
        ------
        StreamwardenError
            ``GATE_NOTHING_HELD``; those of :meth:`decide`.
        """

        def accept() -> Decision:
            record = gate_document(self._workspace, table).read()
            held = record.hold if record is not None else None
            if held is None or held.is_empty:
                raise StreamwardenError("GATE_NOTHING_HELD", table)
            began = time.monotonic()
            versions, start = self._opened(table)
            added = versions.whole(held.version) if start == NOTHING else versions.added(start.content, held.version)
            document = gate_document(self._workspace, table)
            document.update(lambda now: (now or GateRecord(table=table)).accepting(held))
            return self._publish(
                table, start, held.version, added, began, rows=added.rows, run=held.run, by=by, note=note
            )

        return self._raced(accept)

    def _raced(self, work: Callable[[], T]) -> T:
        for number in range(_RACES):
            try:
                return work()
            except Conflict:
                if number == _RACES - 1:
                    raise
        raise AssertionError

    def _opened(self, table: str, *, anew: bool = False) -> tuple[TableVersions, PublishedAt]:
        """Return a table's versions, and what is published of it: nothing if it is to be published anew."""
        versions, log = TableVersions(self._workspace, table), PublishedLog(self._workspace, table)
        if versions.log.latest is None:
            raise StreamwardenError("TABLE_NOT_FOUND", f"{table}: no Delta table")
        if anew:
            return versions, NOTHING
        start = log.at()
        if start != NOTHING and log.identity() != versions.identity():
            raise StreamwardenError("PUBLISHED_TABLE_REPLACED", table)
        return versions, log.finish(start)

    def _decide(self, table: str, *, again: bool, anew: bool, idle: bool) -> Decision | None:
        began = time.monotonic()
        suite = load_suite(self._expectations / f"{table}.json")
        record = gate_document(self._workspace, table).read() or GateRecord(table=table)
        versions, start = self._opened(table, anew=anew)
        latest = versions.log.latest
        assert latest is not None
        if latest <= start.content:
            return self._decide_idle(suite, versions, record, latest) if idle or again else None
        if record.hold is not None and not record.hold.is_empty and not again:
            return None
        added = versions.whole(latest) if start == NOTHING else versions.added(start.content, latest)
        run = self._check(suite, versions, added, start, latest) if added.files or added.changes else None
        if run is None or run.success:
            return self._publish(table, start, latest, added, began, rows=added.rows, run=run.run_id if run else None)
        return self._held(_hold(suite, run, added, start.content, latest, versions.folder), run, began)

    def _decide_idle(self, suite: Suite, versions: TableVersions, record: GateRecord, latest: int) -> Decision | None:
        """Judge the rules about recent rows of a table without new versions."""
        began, started = time.monotonic(), datetime.now(UTC)
        document = gate_document(self._workspace, suite.name)
        found = self._judge_wider(suite, versions, None, latest)
        if not any(item.fails_table for item in found.values()):
            if record.hold is not None:
                document.update(lambda now: (now or record).model_copy(update={"hold": None}))
            return None
        if record.hold is not None:
            return None
        result = TableResult(
            table=suite.name,
            status="failed",
            version=latest,
            after=latest,
            notes=suite.notes,
            expectations=tuple(found.values()),
        )
        run = self._write(result, started)
        hold = _hold(suite, run, NewFiles((), changes=False), latest, latest, versions.folder)
        return self._held(hold, run, began)

    def _held(self, hold: Hold, run: QualityRun, began: float) -> Decision:
        table = run.tables[0].table
        decision = Decision(
            at=utc_now(),
            verdict=Verdict.HELD,
            after=hold.after,
            version=hold.version,
            rows=run.tables[0].rows,
            seconds=round(time.monotonic() - began, 3),
            run=run.run_id,
        )
        gate_document(self._workspace, table).update(
            lambda now: (now or GateRecord(table=table)).decided(decision, hold)
        )
        return decision

    def _publish(
        self,
        table: str,
        start: PublishedAt,
        version: int,
        added: NewFiles,
        began: float,
        *,
        rows: int | None,
        run: str | None,
        by: str = "gate",
        note: str | None = None,
    ) -> Decision:
        log, document = PublishedLog(self._workspace, table), gate_document(self._workspace, table)
        if start == NOTHING:
            if log.versions():
                # To be published anew. The first version is forgotten before the log: killed in between, the same
                # command repeats it, and no later one begins with a version that nobody has checked.
                document.update(lambda now: (now or GateRecord(table=table)).model_copy(update={"began": None}))
                log.remove()
            # So that two publishers begin with the same version.
            began_with = document.update(lambda now: (now or GateRecord(table=table)).begins(version)).began
            version = version if began_with is None else began_with
            log.begin(version)
        else:
            log.publish(start, version, changes=added.changes)
        decision = Decision(
            at=utc_now(),
            verdict=Verdict.PUBLISHED if note is None else Verdict.ACCEPTED,
            after=start.content,
            version=version,
            rows=rows if added.files else None,
            seconds=round(time.monotonic() - began, 3),
            run=run,
            by=by,
            note=note,
        )
        # A repeated decision after a crash between the two: the log is right, and the document follows.
        document.update(lambda now: (now or GateRecord(table=table)).decided(decision, None))
        return decision

    def _check(
        self, suite: Suite, versions: TableVersions, added: NewFiles, start: PublishedAt, version: int
    ) -> QualityRun | None:
        """Check what a range added; None if it added no row, and left some."""
        began, started = time.monotonic(), datetime.now(UTC)
        status: TableStatus
        what: str | None = None
        rows, found = self._judge(suite, versions, added, version) if added.files else (0, [])
        if not rows:
            if start == NOTHING or versions.has_rows(version) or not versions.has_rows(start.content):
                return None
            status, what = "no_rows", f"versions {start.content + 1} to {version} removed all rows of the table"
        else:
            status = _status(found)
        result = TableResult(
            table=suite.name,
            status=status,
            version=version,
            after=start.content,
            rows=rows,
            seconds=round(time.monotonic() - began, 3),
            what=what,
            notes=suite.notes,
            expectations=tuple(found),
        )
        return self._write(result, started)

    def _write(self, result: TableResult, started: datetime) -> QualityRun:
        run = QualityRun(
            run_id=f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            started=_moment(started),
            ended=_moment(datetime.now(UTC)),
            seconds=result.seconds,
            tables_dir=self._workspace.tables,
            great_expectations=str(import_great_expectations().__version__),
            tables=(result,),
        )
        write_run(LocalStorage(self._workspace.root), QUALITY, run)
        self._unkept += run.rows()
        return run

    def _judge(
        self, suite: Suite, versions: TableVersions, added: NewFiles, version: int
    ) -> tuple[int, Sequence[ExpectationResult]]:
        """Return the number of rows that a range added, and what the suite finds in them."""
        path = self._expectations / f"{suite.name}.json"
        try:
            if (added.rows or 0) > ROWS or added.bytes > BYTES:
                raise UnreadableHereError("they are too many for memory")
            rows = versions.read(added.files, version)
        except UnreadableHereError as reason:
            _log.info("%s: Spark checks versions up to %d: %s", suite.name, version, reason)
            return judge_by_spark(self._workspace, suite, path, added, version)
        if not rows.num_rows:
            return 0, []
        checker = self._arrow()
        of_range = suite.only(one for one in suite.expectations if one.meta.recent is None and not one.meta.tables)
        found = {item.id: item for item in checker.run(of_range, build(of_range, path), rows, rows.num_rows)}
        # Keys that are unique among the new rows may repeat older ones.
        for expectation, repeated in with_repeated_keys(of_range, versions, added, rows, version):
            alone = suite.only([expectation])
            found |= {item.id: item for item in checker.run(alone, build(alone, path), repeated, rows.num_rows)}
        found |= self._judge_wider(suite, versions, rows, version)
        return rows.num_rows, [found[one.meta.id] for one in suite.expectations if one.meta.id in found]

    def _judge_wider(
        self, suite: Suite, versions: TableVersions, rows: pa.Table | None, version: int
    ) -> dict[str, ExpectationResult]:
        """Return the results of expectations about recent rows, and of queries that read other tables."""
        record = gate_document(self._workspace, suite.name).read()
        path = self._expectations / f"{suite.name}.json"
        found: dict[str, ExpectationResult] = {}
        for expectation in suite.expectations:
            recent, begin = expectation.meta.recent, None
            if recent is None and (not expectation.meta.tables or rows is None):
                continue
            frame = rows
            if recent is not None:
                newest = versions.newest(version, recent.column)
                if newest is None:
                    continue
                begin = newest - timedelta(days=recent.days)
                frame = versions.since(version, recent.column, begin)
            assert frame is not None
            try:
                others = {name: self._other(name, column, begin) for name, column in expectation.meta.tables.items()}
            except StreamwardenError as error:
                found[expectation.meta.id] = unevaluated(expectation, str(error).splitlines()[0])
                continue
            alone = suite.only([expectation])
            results = self._arrow().run_with(others, alone, build(alone, path), frame, frame.num_rows)
            found |= {item.id: _without(item, record) for item in results}
        return found

    def _other(self, name: str, column: str | None, begin: Any) -> pa.Table:
        """Return another table's rows, from a time on."""
        versions = TableVersions(self._workspace, name)
        version = versions.log.latest
        if version is None:
            raise StreamwardenError("TABLE_NOT_FOUND", f"{name}: no Delta table, which a query reads")
        if column is None or begin is None:
            return versions.read(versions.whole(version).files, version)
        return versions.since(version, column, begin)

    def _arrow(self) -> ArrowChecker:
        if self._checker is None:
            self._checker = ArrowChecker(examples=_EXAMPLES)
        return self._checker


def _without(item: ExpectationResult, record: GateRecord | None) -> ExpectationResult:
    """Return a result as met if a person has accepted each of its failing rows."""
    accepted = [one.row for one in (record.accepted if record else []) if one.expectation == item.id]
    if item.success or item.unexpected_count != len(item.examples) or not item.examples:
        return item
    if not all(row in accepted for row in item.examples):
        return item
    return item.model_copy(update={"success": True, "notes": f"{item.notes} A person has accepted the failing rows."})


def _status(found: Sequence[ExpectationResult]) -> TableStatus:
    if any(item.fails_table for item in found):
        return "failed"
    return "passed" if all(item.success for item in found) else "warned"


def _hold(suite: Suite, run: QualityRun, added: NewFiles, after: int, version: int, folder: str) -> Hold:
    files = [f"{folder}/{unquote(one.path)}" for one in added.files]
    result = run.tables[0]
    kinds = {item.meta.id: item for item in suite.expectations}
    failures = [
        HeldFailure(
            expectation=item.id,
            finding=item.finding(),
            description=item.description,
            examples=list(item.examples),
            query=_query(suite, kinds[item.id], files),
        )
        for item in result.failures[:_FAILURES]
    ]
    if result.what is not None:
        failures.append(HeldFailure(expectation="no_rows", finding=result.what, description="", examples=[]))
    sources = {str(row["source_file"]) for item in failures for row in item.examples if row.get("source_file")}
    return Hold(
        after=after,
        version=version,
        since=utc_now(),
        run=run.run_id,
        failures=failures,
        batches=[f"{application.removeprefix('streamwarden/')}/{batch}" for application, batch in added.transactions],
        source_files=sorted(sources),
    )


def _query(suite: Suite, expectation: Expectation, files: Sequence[str]) -> str | None:
    """Return a query that runs in DuckDB as it is; None for a rule about other rows than the new ones."""
    if expectation.meta.recent is not None or expectation.meta.tables:
        return None
    query = failing_rows_query(expectation.type, expectation.arguments, suite.meta.keys, None)
    if query is None:
        return None
    listed = ", ".join(map(file_literal, files[:_FILES]))
    more = f" /* and {len(files) - _FILES} more files */" if len(files) > _FILES else ""
    return re.sub(rf"\b{BATCH}\b", lambda _: f"read_parquet([{listed}]{more}, union_by_name = true)", query)


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
