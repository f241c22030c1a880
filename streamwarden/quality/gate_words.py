"""The gate's state and decisions in words, for the command line and the pages."""

from __future__ import annotations

from datetime import datetime

from streamwarden.model.gate import Decision, Hold
from streamwarden.quality.gate_state import GateState
from streamwarden.store.layout import QUALITY

__all__ = [
    "decision_note",
    "decision_sentence",
    "hold_lines",
    "moment",
    "state_words",
    "version_range",
    "versions_words",
]


def state_words(state: GateState) -> str:
    """Return whether a table is published or held, in words."""
    if state.error is not None:
        return state.error.code
    if state.hold is not None:
        words = "rule broken since" if state.hold.is_empty else "held since"
        return f"{words} {moment(state.hold.since)}"
    if state.record.trouble is not None:
        return f"{state.record.trouble.code} since {moment(state.record.trouble.since)}"
    if state.latest is None:
        return "no such table"
    return "published" if not state.waiting else "not decided yet"


def hold_lines(state: GateState) -> list[str]:
    """Return why nothing is decided or versions are held, and what to do, as lines; none without a reason."""
    lines = []
    if state.error is not None:
        lines += ["", f"{state.table}: {state.error}"]
    if state.record.trouble is not None:
        trouble = state.record.trouble
        lines += ["", f"{state.table}: no decision since {moment(trouble.since)}: {trouble.code}: {trouble.what}"]
        lines.append("  The gate tries again, at least once a minute.")
    return lines + (_held(state.table, state.hold) if state.hold is not None else [])


def decision_note(decision: Decision) -> str:
    """Return a decision's note, and whether the suite changed meanwhile."""
    changed = "the suite was changed during the check, which used the old one" if decision.suite_changed else ""
    return "; ".join(filter(None, (decision.note, changed)))


def decision_sentence(table: str, decision: Decision) -> str:
    """Return a decision in one line."""
    if decision.after == decision.version:
        return f"{table}: what is published up to version {decision.version} fails a rule, {decision.seconds:.1f} s"
    rows = "" if decision.rows is None else ", 1 row" if decision.rows == 1 else f", {decision.rows:,} rows"
    versions = version_range(decision.after, decision.version)
    changed = f"; {decision_note(decision)}" if decision.suite_changed else ""
    return f"{table}: {decision.verdict} {versions}{rows}, {decision.seconds:.1f} s{changed}"


def version_range(after: int, version: int) -> str:
    """Return the versions after one and up to another, as text."""
    if version == after:
        return "none new"
    return str(version) if version == after + 1 else f"{after + 1} to {version}"


def versions_words(after: int, version: int) -> str:
    """Return the versions after one and up to another: ``version 4``, ``versions 2 to 4``."""
    return f"{'version' if version == after + 1 else 'versions'} {version_range(after, version)}"


def moment(at: datetime) -> str:
    """Return a time as text."""
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _held(table: str, hold: Hold) -> list[str]:
    if hold.is_empty:
        title = f"{table}: no version waits, but what is published up to version {hold.version} fails a rule"
    else:
        are = "is" if hold.version == hold.after + 1 else "are"
        title = f"{table}: {versions_words(hold.after, hold.version)} {are} held"
    lines = ["", title]
    if hold.batches:
        lines.append(f"  written by {', '.join(hold.batches)}")
    if hold.source_files:
        lines.append(f"  from {', '.join(hold.source_files)}")
    for failure in hold.failures:
        lines.append(f"  {failure.expectation}: {failure.finding}. {failure.description}")
        lines += [f"    {', '.join(f'{name}={value}' for name, value in row.items())}" for row in failure.examples]
        if failure.query:
            lines.append(f"    all of them: {failure.query}")
    lines.append(f"  report: {QUALITY}/{hold.run}/report.html")
    if hold.is_empty:
        return [*lines, "  Readers see the published versions. This ends by itself once the rule is met again."]
    again = f"streamwarden gate check {table}{' --anew' if hold.anew else ''}"
    lines.append(f"  Correct the rows and run `{again}`; or publish them as they are:")
    lines.append(f"  `streamwarden gate accept {table} --note WHY`.")
    return lines
