"""What a person can do about a job: the DAG whose form does it, its values, and the same as a command.

The pages write nothing. Airflow 3.3 can't fill in a form by its address, so an act shows the values to enter.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamwarden.airflow.describe import dag_id_of

__all__ = ["ACTS", "Act", "acts_of"]


_NUMBERS = ("partitions", "cores", "executors")
"""Fields of numbers in Airflow's form; all others are texts, also if they look like numbers."""


@dataclass(frozen=True)
class Act:
    """An act.

    Parameters
    ----------
    name
        Its name in addresses.
    title
        The words of its button.
    dag
        The DAG; empty: the job's own.
    does
        What it does, in a sentence.
    fields
        The values that its page passes on, beside the job.
    command
        The command; each value is added as an option of its name.
    subject
        The form's field for the job or the table.
    fixed
        Further values of the form.
    needs
        Fields that may not be empty.
    enter
        What else to enter in the form, in a sentence.
    argument
        The field that the command takes without an option, and its value where none is given.
    """

    name: str
    title: str
    dag: str
    does: str
    command: str
    fields: tuple[str, ...] = ()
    subject: str = "job"
    fixed: tuple[tuple[str, Any], ...] = ()
    needs: tuple[str, ...] = ()
    enter: str = ""
    argument: tuple[str, str] | None = None

    @property
    def on_table(self) -> bool:
        """Whether it is about a table instead of a job."""
        return self.subject != "job"

    def dag_id(self, job: str) -> str:
        """Return the DAG's id."""
        return self.dag or dag_id_of(job)

    def conf(self, subject: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the values for the DAG's form, as its ``Configuration JSON``."""
        if not self.dag:
            return {}
        found: dict[str, Any] = {self.subject: [subject] if self.subject == "tables" else subject, **dict(self.fixed)}
        for name in self.fields:
            if name in self.needs and not given.get(name):
                # Without it the run fails: a person has to write it.
                found[name] = "WHY"
            elif given.get(name):
                found[name] = int(given[name]) if name in _NUMBERS and given[name].isdigit() else given[name]
        return found

    def as_command(self, subject: str, given: Mapping[str, str]) -> str:
        """Return the same as a command."""
        values = {name: shlex.quote(given[name]) if given.get(name) else "" for name in self.fields}
        # Without it the command is refused: a person has to write it.
        values |= {name: "WHY" for name in self.needs if not values[name]}
        words = [self.command.format(shlex.quote(subject))]
        if self.argument is not None:
            name, default = self.argument
            words.append(values.pop(name) or default)
        return " ".join([*words, *(f"--{name.replace('_', '-')} {value}" for name, value in values.items() if value)])


_RESCALES = (
    "Changes partitions, cores, executors or memory, and keeps the state. Takes a savepoint first; then the job is away"
    " for seconds, on a busy machine for a minute. If it is not healthy afterwards, it goes back by itself."
)

_ALL = (
    Act("deploy", "Deploy", "", "Starts the job with its current YAML, and supervises it.", "streamwarden deploy {}"),
    Act("savepoint", "Take a savepoint", "savepoint", "Copies the checkpoint; the job keeps running.",
        "streamwarden savepoint {}", ("note",)),
    Act("rescale", "Rescale", "rescale", _RESCALES,
        "streamwarden rescale {}", ("partitions", "cores", "executors", "memory", "reason"),
        enter="At least one of partitions, cores, executors and memory; what is left empty stays as it is."),
    Act("restore", "Restore", "restore", "Starts the job from a savepoint, and rolls back if it is not healthy.",
        "streamwarden restore {}", ("savepoint", "reason"),
        enter="A savepoint, if it is not to be the newest verified one: each has an act of its own in the list."),
    Act("stop", "Stop", "stop", "The driver finishes its batch and ends.", "streamwarden stop {}", ("reason",)),
    Act("cancel_rescale", "Cancel the rescale", "cancel_rescale", "Rolls a rescale back before its new driver starts.",
        "streamwarden rescale {} --cancel"),
    Act("verify", "Verify savepoints", "verify_savepoints", "Reads every file and the state of savepoints back.",
        "streamwarden savepoints verify {}", ("savepoint",), argument=("savepoint", "all")),
    Act("check", "Check the table", "quality", "Checks the whole table against its expectations.",
        "streamwarden check --table {}", subject="tables"),
    Act("replay", "Replay quarantined rows", "quarantine_replay",
        "Sends rows as they are through their job again, each once: after the rule or the job was corrected.",
        "streamwarden quarantine replay {} --unchanged", ("rule", "note"), "table", (("unchanged", True),), ("note",)),
    Act("recheck", "Check the held rows again", "gate_decide", "Decides again, after rows or the suite were corrected.",
        "streamwarden gate check {}", subject="table", fixed=(("decision", "check"),)),
    Act("accept", "Publish as they are", "gate_decide", "Publishes the held versions; the note stays in the history.",
        "streamwarden gate accept {}", ("note",), "table", (("decision", "accept"),), ("note",)),
    Act("anew", "Check all rows anew", "gate_decide", "Publishes the newest version in place of the old ones.",
        "streamwarden gate check {} --anew", subject="table", fixed=(("decision", "check anew"),)),
)  # fmt: skip

ACTS = {act.name: act for act in _ALL}
"""All acts, by name."""

_ON_STREAM = ("deploy", "savepoint", "rescale", "restore", "stop")


def acts_of(may_trigger: Any, job: str, names: tuple[str, ...] = _ON_STREAM) -> list[Act]:
    """Return the acts that a reader may do on a job.

    Parameters
    ----------
    may_trigger
        Called with a DAG's id: whether the reader may trigger it.
    """
    return [ACTS[name] for name in names if may_trigger(ACTS[name].dag_id(job))]
