"""Diagnose a job that is down: the failure, its evidence, and the next sensible act."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from streamwarden.errors import CATALOGUE, StreamwardenError, is_code
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.record import ErrorInfo
from streamwarden.model.source_spec import THE_SOURCE
from streamwarden.model.status import Desired
from streamwarden.runtime.postmortem import LastWords, last_words
from streamwarden.savepoints import catalog
from streamwarden.savepoints.history import job_is_on_history
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation, Phase

__all__ = ["Diagnosis", "describe", "diagnose"]

_DOWN = (Phase.FAILED, Phase.DEAD, Phase.SILENT)
_WORDLESS = ("DRIVER_DIED", "DRIVER_DID_NOT_START", "DRIVER_SILENT", "DRIVER_STUCK", "DRIVER_FAILED")
_ANOTHER_JOB = "a job of another name, with tables of its own, starts with the whole table as it is"
_AT_VERSION = re.compile(r"\bat version (\d+)\b")
_SIZE = re.compile(r"(\d+)([mg])")


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a job that is down.

    Parameters
    ----------
    code
        The failure's code in the catalogue of errors.
    name
        The kind of failure, in half a sentence.
    evidence
        The line with the cause, from the driver's error or from one of its logs.
    act
        The next sensible act, in words.
    command
        The command for the act, ready to be pasted; empty without such a command.
    """

    code: str
    name: str
    evidence: str
    act: str
    command: str = ""


def diagnose(workspace: Workspace, seen: Observation) -> Diagnosis | None:
    """Return the diagnosis of a failed, dead or silent job; None for any other job.

    Starts nothing and changes nothing. For a driver without an exit document, reads the logs on this machine. Does not
    recognise a kill by the kernel: no log records it.

    Parameters
    ----------
    workspace
        The workspace of the job.
    seen
        The observation of the job.
    """
    if seen.phase not in _DOWN or seen.error is None or seen.desired is None:
        return None
    code, evidence = seen.error.code, _first_line(seen.error.what)
    if code in _WORDLESS and seen.incarnation is not None:
        words = last_words(workspace.log_dir(seen.job, seen.incarnation))
        code, evidence = _of_the_dead(seen.error, words)
    case = _Case(workspace, seen.job, seen.desired, seen.error)
    act, command = _ACTS.get(code, _as_catalogued)(case)
    if is_code(code) and code != seen.error.code and code not in _ACTS:
        act = CATALOGUE[code].remedy
    if command.startswith(case.deploy):
        # A run of the job's DAG deploys the job, too. The command neither claims the job nor starts a run.
        watched = f"To have it supervised, trigger its DAG job_{seen.job}: the command alone does not supervise it"
        act = f"{act.rstrip('.')}. {watched}"
    return Diagnosis(code, _name(code), evidence, act, command)


def describe(found: Diagnosis) -> str:
    """Return a diagnosis as a few lines of text, for logs and terminals."""
    lines = [f"Diagnosis: {found.name} [{found.code}]", f"  Seen in: {found.evidence}", f"  Next: {found.act}"]
    if found.command:
        lines.append(f"  Command: {found.command}")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Case:
    workspace: Workspace
    job: str
    desired: Desired
    error: ErrorInfo

    def restore(self) -> tuple[str, str]:
        """Return act and command to restore the newest verified savepoint, or the best alternative."""
        try:
            found = catalog.find(self.workspace, self.job, catalog.LATEST)
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_NOT_FOUND":
                # The store cannot be read now; the command will find the savepoint.
                return "restore the newest verified savepoint", f"streamwarden restore {self.job} --savepoint latest"
            if any(one.verdict == "unverified" for one in _savepoints(self)):
                return (
                    "no savepoint is verified yet: verify them, then restore the newest verified one",
                    f"streamwarden savepoints verify {self.job} all",
                )
            return "there is no savepoint to restore: restore the missing files from a backup of the disk or bucket", ""
        taken = f"{found.manifest.taken_at:%Y-%m-%d %H:%M} UTC"
        return (
            f"restore the latest verified savepoint, of batch {found.manifest.batch}, taken {taken}",
            f"streamwarden restore {self.job} --savepoint {found.manifest.id}",
        )

    @property
    def deploy(self) -> str:
        """The command that starts the job again."""
        return f"streamwarden deploy {self.job}"

    @property
    def yaml(self) -> str:
        """The path of the job's YAML file, for messages."""
        return f"config/jobs/{self.job}.yaml"


def _savepoints(case: _Case) -> list[catalog.Savepoint]:
    return catalog.savepoints(case.workspace, case.job)


def _checkpoint_damaged(case: _Case) -> tuple[str, str]:
    act, command = case.restore()
    return f"the job can't continue from this checkpoint: {act}", command


def _table_damaged(case: _Case) -> tuple[str, str]:
    # The command names a savepoint from before the damage, which is not always the latest.
    command = re.search(r"`(streamwarden restore [^`]+)`", case.error.remedy)
    return case.error.remedy, command[1] if command else ""


def _state_changed(case: _Case) -> tuple[str, str]:
    act, command = case.restore()
    return f"bring back the query as it was and deploy it; or, if the new query has a savepoint, {act}", (
        case.deploy if not command else f"{case.deploy}    # or: {command}"
    )


def _source_gone(case: _Case) -> tuple[str, str]:
    spec = case.desired.spec
    if len(spec.kafka_sources) == len(spec.inputs):
        topics = " or ".join(source.title for source in spec.kafka_sources.values())
        return (
            f"records of {topics} were dropped before they were read, by its retention or with the topic:"
            " they are lost to this job. Raise the topic's retention; to continue without them, deploy the job under"
            " another name",
            case.deploy,
        )
    names = [f"table {source.table}" for source in spec.delta_sources.values()]
    names += [f"folder {spec.files_source.path}"] if spec.files_source is not None else []
    act = (
        f"bring the missing files of the source {' or '.join(names)} back, then deploy. No savepoint helps against rows"
        " that the source no longer has"
    )
    if spec.delta_sources:
        act += f". If they are gone for good, as after VACUUM: {_ANOTHER_JOB}"
    return act, case.deploy


def _source_rows(case: _Case) -> tuple[str, str]:
    if job_is_on_history(case.workspace, case.desired.spec):
        return (
            "rows of the history table were changed while the job read them; rows that it has read stay in its"
            f" outputs. To begin with the table as it is now: {_ANOTHER_JOB}",
            case.deploy,
        )
    sources = case.desired.spec.delta_sources
    found = _AT_VERSION.search(case.error.what)
    change, name = None, next(iter(sources), THE_SOURCE)
    for one, source in sources.items():
        with suppress(OSError, ValueError, StreamwardenError):
            if found is not None and change is None:
                change, name = DeltaLog(case.workspace.files, source.table).change(int(found[1])), one
    field = name if name == THE_SOURCE else f"sources.{name}"
    by = f" of version {change.version}, {change.operation or 'of an unknown operation'}," if change else ""
    act = f"to skip the commit{by} set {field}.on_change: skip in {case.yaml}, then deploy"
    if change is None or change.operation != "DELETE":
        act += "; rows that it added are not read"
    return (
        f"{act}. Rows that the job has read before stay in its outputs. If the outputs must match the table as it is"
        f" now: {_ANOTHER_JOB}. Restoring an earlier version of the table does not help: it is another such commit",
        case.deploy,
    )


def _memory(case: _Case) -> tuple[str, str]:
    now = case.desired.spec.resources.memory
    return (
        f"raise resources.memory from {now} to {_doubled(now)} in {case.yaml}, then deploy; or make batches smaller:"
        " source.max_files_per_batch (for Kafka source.max_offsets_per_batch)",
        case.deploy,
    )


def _killed(case: _Case) -> tuple[str, str]:
    return (
        "no cause was recorded: killed from outside or out of memory. If the kernel's log (journalctl -k) shows an"
        " out-of-memory kill, give the machine's jobs less memory in total, or the machine more; then deploy",
        f"streamwarden logs {case.job} --source spark",
    )


def _stuck(case: _Case) -> tuple[str, str]:
    return (
        "find what its last batch waited for: a task, or a store that does not answer; correct that, then deploy. If"
        f" batches really take that long, raise trigger.timeout in {case.yaml}, or make them smaller",
        f"streamwarden logs {case.job} --source spark",
    )


def _concurrent(case: _Case) -> tuple[str, str]:
    tables = ", ".join(sink.table for sink in case.desired.spec.delta_sinks)
    act = f"find who else writes to {tables}: DESCRIBE HISTORY names each commit's operation"
    if "[CONCURRENT_STREAM_LOG_UPDATE]" in case.error.what:
        act = "find the other query that was started on the job's checkpoint"
    return f"{act}. Stop it, then deploy", case.deploy


def _job_code(case: _Case) -> tuple[str, str]:
    spec = case.desired.spec
    act = f"correct what the traceback names in {spec.module}, then deploy"
    aside = [sink.table for sink in spec.delta_sinks[1:]]
    if aside:
        act += f". Similar rows may be in {', '.join(aside)}"
    return act, case.deploy


def _as_catalogued(case: _Case) -> tuple[str, str]:
    return case.error.remedy, ""


def _log(case: _Case) -> tuple[str, str]:
    return case.error.remedy, f"streamwarden logs {case.job}"


def _then_deploy(case: _Case) -> tuple[str, str]:
    return case.error.remedy, case.deploy


_ACTS: dict[str, Callable[[_Case], tuple[str, str]]] = {
    "BATCH_FAILED": _log,
    "CHECKPOINT_DAMAGED": _checkpoint_damaged,
    "CONCURRENT_WRITER": _concurrent,
    "DRIVER_DIED": _killed,
    "DRIVER_DID_NOT_START": _log,
    "DRIVER_FAILED": _log,
    "DRIVER_KILLED": _then_deploy,
    "DRIVER_SILENT": _log,
    "DRIVER_STUCK": _stuck,
    "JOB_CODE_FAILED": _job_code,
    "JVM_DIED": _killed,
    "OUT_OF_MEMORY": _memory,
    "PYTHON_WORKER_DIED": _killed,
    "SPARK_CONTEXT_LOST": _log,
    "S3_REFUSED": _then_deploy,
    "SOURCE_DATA_GONE": _source_gone,
    "SOURCE_REPLACED": _then_deploy,
    "SOURCE_ROWS_CHANGED": _source_rows,
    "SOURCE_SCHEMA_CHANGED": _then_deploy,
    "STATE_SCHEMA_CHANGED": _state_changed,
    "TABLE_DAMAGED": _table_damaged,
}


def _of_the_dead(error: ErrorInfo, words: LastWords) -> tuple[str, str]:
    if words.code is not None:
        return words.code, f"{words.file}: {words.evidence}"
    if words.evidence and error.code != "DRIVER_FAILED":
        return error.code, f"{_first_line(error.what)}; the last error in {words.file}: {words.evidence}"
    return error.code, _first_line(error.what)


def _name(code: str) -> str:
    if code in ("DRIVER_DIED", "JVM_DIED"):
        return "killed from outside or out of memory"
    # Another version may know more codes.
    return CATALOGUE[code].summary if is_code(code) else code


def _doubled(size: str) -> str:
    match = _SIZE.fullmatch(size)
    assert match is not None, "the spec checks it"
    return f"{2 * int(match[1])}{match[2]}"


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
