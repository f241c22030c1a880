"""Records of the gate: what it decided about the versions of a table."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ACCEPTED",
    "KEPT",
    "AcceptedRow",
    "Decision",
    "GateEvents",
    "GateRecord",
    "HeldFailure",
    "Hold",
    "Trouble",
    "Verdict",
]

KEPT = 50
"""Decisions in a table's document. 50: a day of an hourly batch, and the quality table has all of them."""


ACCEPTED = 200
"""Accepted rows in a table's document. 200: ten holds with all of their examples, of the last days."""


class Verdict(StrEnum):
    """What the gate decided about a range of versions."""

    PUBLISHED = "published"
    HELD = "held"
    ACCEPTED = "accepted"
    """Published by a person although expectations failed."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class HeldFailure(_Record):
    """A failed expectation of a held range."""

    expectation: str
    finding: str
    description: str
    examples: list[dict[str, Any]] = Field(description="Some failing rows: their keys and the columns in question.")
    query: str | None = Field(default=None, description="A query for all failing rows, in DuckDB's SQL.")


class Hold(_Record):
    """A range of versions that waits for a person, and with it all later versions."""

    after: int = Field(description="The version before the range: the content of the published table.")
    version: int = Field(description="The last version of the range.")
    since: datetime
    run: str = Field(description="The check's run, whose report has all failures.")
    failures: list[HeldFailure]
    batches: list[str] = Field(description="Batches that wrote the range: JOB/gGENERATION/BATCH.")
    source_files: list[str] = Field(
        default=[], description="Landed files that the failing examples came from; if unknown, some of the range's."
    )
    anew: bool = Field(default=False, description="All rows were checked, to publish the version in place of the old.")
    suite: str = Field(default="", description="The suite's digest, as in the decision.")

    @property
    def is_empty(self) -> bool:
        """Whether no version waits: the published rows themselves fail a rule, as when a table gets no new ones."""
        return self.version == self.after

    def is_over(self, published: int) -> bool:
        """Return whether the range is published, by another gate that was killed before it could write so."""
        return not self.is_empty and not self.anew and self.version <= published


class Trouble(_Record):
    """Why the gate can't decide about a table; it tries again."""

    since: datetime = Field(description="The first failure in a row.")
    at: datetime = Field(description="The latest one.")
    code: str = Field(description="An error code, or the exception's type.")
    what: str


class Decision(_Record):
    """One decision."""

    at: datetime
    verdict: Verdict
    after: int
    version: int
    rows: int | None = Field(description="Checked rows; None if no row was added.")
    seconds: float = Field(description="From the beginning of the check to the decision.")
    run: str | None = Field(default=None, description="The check's run; None if there was nothing to check.")
    by: str = Field(default="gate", description="The gate, or the person who decided.")
    note: str | None = None
    suite: str = Field(default="", description="The first digits of the SHA-256 of the suite's file that was used.")
    suite_changed: bool = Field(
        default=False, description="Whether the file was changed during the check: the decision is by the old one."
    )


class AcceptedRow(_Record):
    """A failing row of a rule about recent rows that a person has accepted: it does not hold later versions."""

    expectation: str
    row: dict[str, Any]


class GateRecord(_Record):
    """The gate's document of one table. What is published is in the published log, not here."""

    table: str
    began: int | None = Field(default=None, description="The first published version; fixed before it is published.")
    hold: Hold | None = None
    trouble: Trouble | None = None
    accepted: list[AcceptedRow] = Field(default=[], description=f"The newest {ACCEPTED}, oldest first.")
    decisions: list[Decision] = Field(default=[], description=f"The newest {KEPT}, oldest first.")

    def begins(self, version: int) -> GateRecord:
        """Return the record with a first version, if it has none."""
        return self if self.began is not None else self.model_copy(update={"began": version})

    def decided(self, decision: Decision, hold: Hold | None) -> GateRecord:
        """Return the record with one more decision. A range that is held again has been held since the first time."""
        before = self.hold
        if hold is not None and before is not None and (hold.after, hold.is_empty) == (before.after, before.is_empty):
            hold = hold.model_copy(update={"since": before.since})
        changed = {"hold": hold, "trouble": None, "decisions": [*self.decisions, decision][-KEPT:]}
        return self.model_copy(update=changed)

    def failed(self, at: datetime, code: str, what: str) -> GateRecord:
        """Return the record with one more failure to decide."""
        since = self.trouble.since if self.trouble is not None else at
        return self.model_copy(update={"trouble": Trouble(since=since, at=at, code=code, what=what)})

    def accepting(self, hold: Hold) -> GateRecord:
        """Return the record with the failing rows of a hold accepted."""
        rows = [AcceptedRow(expectation=one.expectation, row=row) for one in hold.failures for row in one.examples]
        return self.model_copy(update={"accepted": [*self.accepted, *rows][-ACCEPTED:]})


class GateEvents(_Record):
    """Which decisions about a table have become asset events."""

    through: datetime | None = Field(description="When the last of them was made; None before the first decision.")
