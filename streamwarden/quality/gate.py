"""The gate: check what a table's new versions added, and publish them if they pass.

One decision covers all versions since the last published one. If they pass, readers of the published table see them.
If not, the gate holds them and all later ones until a person decides: see :class:`Gate`. A decision needs no Spark,
unless the range does not fit into memory.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_log import NOTHING, PublishedAt, PublishedLog
from streamwarden.model.gate import Decision, GateRecord, Hold, Verdict
from streamwarden.model.record import utc_now
from streamwarden.quality.documents import write_decision, write_run
from streamwarden.quality.engine import import_great_expectations
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.gate_words import versions_words
from streamwarden.quality.holds import hold_of
from streamwarden.quality.kept_results import KeptResults
from streamwarden.quality.lineage import DecisionRun, Lineage
from streamwarden.quality.range_judge import Judged, RangeJudge
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult, table_status
from streamwarden.quality.suites import Suite, load_suite, suite_digest, suite_names
from streamwarden.quality.table_versions import NewFiles, TableVersions
from streamwarden.redaction import redacted
from streamwarden.storage import Conflict, LocalStorage
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace

T = TypeVar("T")

__all__ = ["Gate"]

_RACES = 5


@dataclass(frozen=True)
class _Check:
    """A suite on its way through a decision."""

    suite: Suite
    path: Path
    digest: str
    lineage: DecisionRun
    began: float = field(default_factory=time.monotonic)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)

    @property
    def is_old(self) -> bool:
        """Whether the suite's file was changed meanwhile."""
        return suite_digest(self.path) != self.digest


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
    lineage
        Sends an event of each decision. Default: nothing is sent.
    """

    def __init__(self, workspace: Workspace, expectations: Path | None = None, lineage: Lineage | None = None) -> None:
        self._workspace = workspace
        self.lineage = lineage or Lineage(workspace)
        self._expectations = expectations or workspace.config.parent / "expectations"
        self._judge = RangeJudge(workspace, self._expectations)
        self._kept = KeptResults(workspace)

    def keep_results(self) -> int:
        """Append the results of decisions since the last call to the table of results; return how many rows.

        For limits and errors see :class:`~streamwarden.quality.kept_results.KeptResults`.
        """
        return self._kept.keep()

    @property
    def tables(self) -> list[str]:
        """The tables that have a suite, readable or not: the gate is for these."""
        return suite_names(self._expectations)

    def is_held(self, table: str) -> bool:
        """Return whether versions of a table wait for a person."""
        record = gate_document(self._workspace, table).read()
        return record is not None and record.hold is not None and not record.hold.is_empty

    def note(self, table: str, error: Exception | None) -> None:
        """Write why the gate could not decide about a table, for its status and the alarm; None: it now can."""
        document = gate_document(self._workspace, table)
        if error is None:
            record = document.read()
            if record is not None and record.trouble is not None:
                document.update(lambda now: (now or GateRecord(table=table)).model_copy(update={"trouble": None}))
            return
        code = error.code if isinstance(error, StreamwardenError) else type(error).__name__
        text = (error.what if isinstance(error, StreamwardenError) else redacted(str(error))).strip()
        what = text.splitlines()[0][:500] if text else ""
        document.update(lambda now: (now or GateRecord(table=table)).failed(utc_now(), code, what))

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
        with self.lineage.deciding(table, has_suite=self._suite_path(table).is_file()) as run:
            decision = self._raced(lambda: self._decide(run, table, again=again, anew=anew, idle=idle))
            run.ended(decision)
            return decision

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
            document, began = gate_document(self._workspace, table), time.monotonic()
            record = document.read()
            held = record.hold if record is not None else None
            if held is None or held.is_empty:
                raise StreamwardenError("GATE_NOTHING_HELD", table)
            versions, start = self._opened(table, anew=held.anew)
            if held.is_over(start.content):
                raise StreamwardenError("GATE_NOTHING_HELD", f"{table}: version {held.version} is published")
            run.start()
            added = versions.whole(held.version) if start == NOTHING else versions.added(start.content, held.version)
            document.update(lambda now: (now or GateRecord(table=table)).accepting(held))
            decision = Decision(
                at=utc_now(),
                verdict=Verdict.ACCEPTED,
                after=start.content,
                version=held.version,
                rows=added.rows if added.files else None,
                seconds=round(time.monotonic() - began, 3),
                run=held.run,
                by=by,
                note=note,
                suite=held.suite,
            )
            return self._publish(table, start, added, decision, anew=held.anew)

        with self.lineage.deciding(table, has_suite=False) as run:
            decision = self._raced(accept)
            run.ended(decision)
            return decision

    def _suite_path(self, table: str) -> Path:
        return self._expectations / f"{table}.json"

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
        # Listed again: another gate may have published a version that came after the first listing.
        if start.content > versions.log.latest and not versions.log.since(start.content):
            what = (
                f"{table}: version {start.content} is published, and the table ends with version {versions.log.latest}"
            )
            raise StreamwardenError("PUBLISHED_TABLE_REPLACED", what)
        return versions, log.finish(start)

    def _decide(self, lineage: DecisionRun, table: str, *, again: bool, anew: bool, idle: bool) -> Decision | None:
        path = self._suite_path(table)
        digest = suite_digest(path)
        check = _Check(load_suite(path), path, digest, lineage)
        record = gate_document(self._workspace, table).read() or GateRecord(table=table)
        versions, start = self._opened(table, anew=anew)
        latest = versions.log.latest
        assert latest is not None
        hold = record.hold
        if latest <= start.content:
            if hold is not None and (hold.is_over(start.content) or again):
                self._end_hold(table)
                record = record.model_copy(update={"hold": None})
            return self._decide_idle(check, versions, record, latest) if idle or again else None
        if hold is not None and not hold.is_empty and not hold.is_over(start.content) and not again:
            return None
        check.lineage.start()
        added = versions.whole(latest) if start == NOTHING else versions.added(start.content, latest)
        judged = self._judge.judge(check.suite, versions, added, latest) if added.files else Judged(0)
        run = self._result(check, versions, added, judged, start, latest)
        if run is not None and not run.success:
            held = hold_of(check.suite, run, judged, added, versions, start.content, anew=anew)
            return self._held(held, run, check, lambda: anew or self._is_at(table, start))
        decision = _decision(check, Verdict.PUBLISHED, start.content, latest, run)
        return self._publish(table, start, added, decision, anew=anew)

    def _decide_idle(self, check: _Check, versions: TableVersions, record: GateRecord, latest: int) -> Decision | None:
        """Judge the rules about recent rows of a table without new versions."""
        table = check.suite.name
        judged = Judged(0, self._judge.judge_wider(check.suite, versions, latest))
        if not any(item.fails_table for item in judged.results.values()):
            if record.hold is not None and record.hold.is_empty:
                self._end_hold(table)
            return None
        if record.hold is not None:
            return None
        # Not before: these rules are judged again and again, and mostly there is nothing to tell.
        check.lineage.start()
        fields = {"status": "failed", "after": latest, "seconds": check.seconds}
        run = self._write(check, latest, judged.of(check.suite), **fields)
        hold = hold_of(check.suite, run, judged, NewFiles((), changes=False), versions, latest)
        return self._held(hold, run, check, lambda: PublishedLog(self._workspace, table).at().content <= latest)

    def _end_hold(self, table: str) -> None:
        document = gate_document(self._workspace, table)
        document.update(lambda now: (now or GateRecord(table=table)).model_copy(update={"hold": None}))

    def _is_at(self, table: str, start: PublishedAt) -> bool:
        return PublishedLog(self._workspace, table).at() == start

    def _held(self, hold: Hold, run: QualityRun, check: _Check, is_current: Callable[[], bool]) -> Decision:
        """Write a hold, unless another gate has published meanwhile: then raise `Conflict`."""
        table = check.suite.name
        decision = _decision(check, Verdict.HELD, hold.after, hold.version, run)

        def held(now: GateRecord | None) -> GateRecord:
            # Looked at after the document was read: another gate writes its document after it has published, and this
            # write then fails.
            if not is_current():
                raise Conflict(f"{table}: another gate has published")
            return (now or GateRecord(table=table)).decided(decision, hold)

        gate_document(self._workspace, table).update(held)
        self._tell(decision)
        return decision

    def _publish(self, table: str, start: PublishedAt, added: NewFiles, decision: Decision, *, anew: bool) -> Decision:
        log, document = PublishedLog(self._workspace, table), gate_document(self._workspace, table)
        if start == NOTHING:
            if anew and log.versions():
                # The first version is forgotten before the log: killed in between, the same
                # command repeats it, and no later one begins with a version that nobody has checked.
                document.update(lambda now: (now or GateRecord(table=table)).model_copy(update={"began": None}))
                log.remove()
            # So that two publishers begin with the same version.
            first = document.update(lambda now: (now or GateRecord(table=table)).begins(decision.version)).began
            if first is not None:
                decision = decision.model_copy(update={"version": first})
            log.begin(decision.version)
        else:
            log.publish(start, decision.version, changes=added.changes)
        # A repeated decision after a crash between the two: the log is right, and the document follows.
        document.update(lambda now: (now or GateRecord(table=table)).decided(decision, None))
        self._tell(decision)
        return decision

    def _tell(self, decision: Decision) -> None:
        write_decision(LocalStorage(self._workspace.root), QUALITY, decision)

    def _result(
        self,
        check: _Check,
        versions: TableVersions,
        added: NewFiles,
        judged: Judged,
        start: PublishedAt,
        version: int,
    ) -> QualityRun | None:
        """Return the check of a range; None if it added no row, and left some."""
        fields = {"after": start.content, "rows": judged.rows, "seconds": check.seconds}
        if judged.rows:
            found = judged.of(check.suite)
            return self._write(check, version, found, status=table_status(found), **fields)
        if not added.files and not added.changes:
            return None
        if start == NOTHING or versions.has_rows(version) or not versions.has_rows(start.content):
            return None
        what = f"{versions_words(start.content, version)} removed all rows of the table"
        return self._write(check, version, (), status="no_rows", what=what, **fields)

    def _write(self, check: _Check, version: int, found: tuple[ExpectationResult, ...], **fields: Any) -> QualityRun:
        result = TableResult(
            table=check.suite.name,
            version=version,
            notes=check.suite.notes,
            suite=check.digest,
            expectations=found,
            **fields,
        )
        run = QualityRun(
            run_id=f"{check.started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            started=_moment(check.started),
            ended=_moment(datetime.now(UTC)),
            seconds=result.seconds,
            tables_dir=self._workspace.tables,
            great_expectations=str(import_great_expectations().__version__),
            tables=(result,),
        )
        write_run(LocalStorage(self._workspace.root), QUALITY, run)
        self._kept.add(run.rows())
        return run


def _decision(check: _Check, verdict: Verdict, after: int, version: int, run: QualityRun | None) -> Decision:
    return Decision(
        at=utc_now(),
        verdict=verdict,
        after=after,
        version=version,
        rows=run.tables[0].rows if run is not None else None,
        seconds=check.seconds,
        run=run.run_id if run is not None else None,
        suite=check.digest,
        suite_changed=check.is_old,
    )


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
