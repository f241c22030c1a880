"""Compare a changed YAML with the deployed job: each changed field with its effect, before any change is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamwarden.errors import CATALOGUE, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.column_changes import TableColumns, compared_columns, existing_tables
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Desired
from streamwarden.operations.field_effects import SOURCES, WHOLE, Effect, effect_of, strongest
from streamwarden.savepoints.compatibility import (
    Written,
    job_version,
    migrates,
    misfits,
    spark_version,
    stored_backend,
)
from streamwarden.savepoints.history import job_is_on_history, other_history
from streamwarden.savepoints.writers import writer_versions
from streamwarden.store.declared_sources import check_declared_sources
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import effective_spec
from streamwarden.store.module_text import module_text
from streamwarden.store.transform_check import check_transform
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation, observe

__all__ = [
    "Change",
    "CheckpointFacts",
    "RolloutPlan",
    "changed_fields",
    "changes_between",
    "checkpoint_facts",
    "plan",
]


_HISTORY = "source.history"

_WRITTEN = "written"
"""Stands for a sink as a whole."""

_SOURCE_IDENTITY = re.compile(r"(source|sources\.[^.]+)\.(kind|path|table|topic|topics|topic_pattern)")

_ELSEWHERE = "Set it back, or deploy the job under another name: it then starts with a new checkpoint."


@dataclass(frozen=True)
class Change:
    """A difference between the deployed spec and the YAML.

    Parameters
    ----------
    field
        The dotted field, as in the YAML; a sink's field by its table. Other differences: such as ``module VERSION``.
    before, after
        Plain JSON values; None if absent.
    effect
        What the change requires.
    why
        The reason, in half a sentence.
    remedy
        For a refused change: the alternative.
    """

    field: str
    before: Any
    after: Any
    effect: Effect
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class RolloutPlan:
    """The plan of a deploy.

    Parameters
    ----------
    job
        The job.
    deployed
        The running spec; for a job that is down, the spec of its next restart; None if it was never deployed.
    wanted
        The spec of the YAML with the profile's overrides.
    changes
        The differences.
    running
        Whether a driver runs. Only then there is a driver to stop, and a state to roll back to.
    loaded
        Whether the module was loaded, to compare its outputs with tables.
    """

    job: str
    deployed: JobSpec | None
    wanted: JobSpec
    changes: tuple[Change, ...] = ()
    running: bool = False
    loaded: bool = False

    @property
    def effect(self) -> Effect:
        """The strongest of the changes' effects."""
        return strongest(change.effect for change in self.changes)

    @property
    def fields(self) -> str:
        """The changed fields, in words."""
        return ", ".join(change.field for change in self.changes) or "nothing"

    @property
    def has_columns(self) -> bool:
        """Whether a table gets new columns of the module."""
        return any(change.field.startswith("sinks.") and ".columns." in change.field for change in self.changes)

    def refuse(self) -> None:
        """Raise if a change is refused.

        Raises
        ------
        StreamwardenError
            ``ROLLOUT_REFUSED``, with every refused change and the remedy of the first.
        """
        refused = [change for change in self.changes if change.effect is Effect.REFUSED]
        if refused:
            what = "; ".join(f"{one.field} {one.before} -> {one.after}: {one.why}" for one in refused)
            raise StreamwardenError("ROLLOUT_REFUSED", f"{self.job}: {what}", remedy=refused[0].remedy or None)


@dataclass(frozen=True)
class CheckpointFacts:
    """The writer of a job's checkpoint; see :class:`~streamwarden.savepoints.compatibility.Written`.

    Parameters
    ----------
    spec
        The spec of the writer.
    versions
        The versions of spark and of the job's module.
    settings
        Spark settings that the checkpoint fixes.
    partitions
        State partitions; None for a stateless job.
    """

    spec: JobSpec
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: int | None = None


def plan(workspace: Workspace, job: str) -> RolloutPlan:
    """Compare a job's deployed spec with its YAML, and its tables with its module. Writes nothing.

    Does not compare the module's code, except for its VERSION and OUTPUTS. Does not compare settings of the profile
    itself, such as its ``spark``.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN``, ``CONFIG_INVALID``, or ``JOB_MODULE_INVALID`` and ``JOIN_WITHOUT_WATERMARK`` for what the text
        of the module shows.
    """
    wanted = effective_spec(workspace, job)
    _check_text(workspace, wanted)
    seen = observe(workspace, job)
    if seen.desired is None:
        return RolloutPlan(job, None, wanted)
    base = _running_spec(seen, seen.desired) if seen.phase.alive else seen.desired.spec
    unknown: tuple[Change, ...] = ()
    if base is None:
        base = seen.desired.spec
        unknown = (
            Change("driver", seen.incarnation, None, Effect.RESTART, "the spec that it was launched with is unknown"),
        )
    facts = checkpoint_facts(workspace, job, base)
    found = changes_between(base, wanted, facts)
    if facts is not None and other_history(base, wanted) and job_is_on_history(workspace, base):
        why = "the job is reading its history"
        remedy = "Set it back until the history is read, or deploy the job under another name: it then begins anew."
        found = tuple(
            replace(one, effect=Effect.REFUSED, why=why, remedy=remedy) if one.field.startswith(_HISTORY) else one
            for one in found
        )
    # Fields that a driver reads are compared with its running spec; fields for supervisors, with the desired spec.
    driver = [one for one in found if one.effect is not Effect.LIVE]
    live = [one for one in _differences(seen.desired.spec, wanted) if one.effect is Effect.LIVE]
    tables = existing_tables(workspace, wanted)
    found = _with_tables(workspace, (*unknown, *driver, *live), wanted, tables, released=seen.desired.went_back)
    return RolloutPlan(job, base, wanted, found, running=seen.phase.alive, loaded=bool(tables))


def changed_fields(deployed: JobSpec, wanted: JobSpec) -> list[str]:
    """Return the dotted fields that differ. Fast enough to be called often: does not judge, and reads no checkpoint."""
    return [change.field for change in _differences(deployed, wanted)]


def changes_between(base: JobSpec, wanted: JobSpec, written: Written | None) -> tuple[Change, ...]:
    """Return the differences between two specs, and the contradictions between the second spec and the checkpoint.

    Parameters
    ----------
    base
        The running spec, or the last one that ran.
    wanted
        The spec to run.
    written
        The writer of the checkpoint; None without a checkpoint.
    """
    found = {change.field: change for change in _differences(base, wanted)}
    if written is not None:
        for error in misfits(written, wanted):
            found.update({change.field: change for change in _misfit(error, found, written, wanted)})
    return tuple(found.values())


def checkpoint_facts(workspace: Workspace, job: str, spec: JobSpec) -> CheckpointFacts | None:
    """Return the writer of a job's checkpoint, or None if no batch was begun on it.

    Parameters
    ----------
    spec
        The spec of the writer, as far as it is known.
    """
    documents = JobDocuments(workspace.storage, job)
    reference = documents.checkpoint.read()
    if reference is None:
        return None
    reader = CheckpointReader(workspace.storage, reference.path)
    last = reader.last_offset()
    offsets = reader.offsets(last) if last is not None else None
    if offsets is None:
        return None
    partitions = offsets.conf.get("spark.sql.shuffle.partitions") if reader.has_state() else None
    return CheckpointFacts(
        spec=spec,
        versions=writer_versions(workspace, job),
        settings=offsets.conf,
        partitions=int(partitions) if partitions is not None else None,
    )


def _check_text(workspace: Workspace, wanted: JobSpec) -> None:
    """Check the module's text, which takes no time; see :func:`~streamwarden.operations.module_load.check_module`."""
    text = module_text(wanted.module, workspace.config.parent)
    if text is None:
        return
    declared = text.constant("SOURCES")
    if declared is not None:
        # Only literals are known here.
        check_declared_sources(wanted, declared, text)
    check_transform(wanted, text)


def _with_tables(
    workspace: Workspace,
    found: tuple[Change, ...],
    wanted: JobSpec,
    tables: Mapping[str, TableColumns],
    *,
    released: bool,
) -> tuple[Change, ...]:
    """Return the changes, with additions and refusals because of existing tables."""
    changes = {change.field: change for change in found}
    for sink in wanted.delta_sinks:
        name = f"sinks.{sink.table}.partition_by"
        if name in changes and sink.table in tables:
            made_by = tables[sink.table].partition_by
            if made_by != tuple(sink.partition_by):
                why = f"the table is there, partitioned by {', '.join(made_by) or 'nothing'}"
                remedy = "Set it back, or give the job another table (`table` of its sink)."
                changes[name] = replace(changes[name], effect=Effect.REFUSED, why=why, remedy=remedy)
    for sink, columns in compared_columns(workspace, wanted, tables, released=released):
        for one in columns.added:
            name = f"sinks.{sink.table}.columns.{one.name}"
            why = "the table lacks it: it is added, and null in existing rows"
            changes[name] = Change(name, None, one.type, Effect.SAVEPOINT, why)
        for misfit in columns.misfits:
            name = f"sinks.{sink.table}.columns.{misfit.column}"
            changes[name] = Change(name, misfit.before, misfit.after, Effect.REFUSED, misfit.why, misfit.remedy)
    return tuple(changes.values())


def _running_spec(seen: Observation, desired: Desired) -> JobSpec | None:
    """Return the spec that the living driver runs, or None if it is no longer known."""
    launch, heartbeat = seen.launch, seen.heartbeat
    if launch is None:
        return None
    # The heartbeat's digest takes precedence: the driver reads the desired document a moment after its launch.
    runs = heartbeat.digest if heartbeat is not None and heartbeat.digest else launch.digest
    if runs == desired.digest:
        return desired.spec
    return launch.spec if launch.digest == runs else None


def _differences(base: JobSpec, wanted: JobSpec) -> list[Change]:
    before, after = _flat(base), _flat(wanted)
    found = []
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name), after.get(name)
        present = new or old
        if old == new or present is None:
            continue
        effect, why = effect_of(present[0], name.removeprefix("spark."))
        found.append(Change(name, old[1] if old else None, new[1] if new else None, effect, why))
    return _without_parts(found)


def _without_parts(found: list[Change]) -> list[Change]:
    """Omit the fields of a sink that was added or removed as a whole."""
    whole = {one.field for one in found if one.field.startswith("sinks.") and _WRITTEN in (one.before, one.after)}

    def parents(name: str) -> set[str]:
        return {name.rpartition(".")[0], name.partition(".row_rules.")[0]}

    return [one for one in found if one.field in whole or not parents(one.field) & whole]


def _flat(spec: JobSpec) -> dict[str, tuple[str, Any]]:
    """Return a spec's fields, dotted, each with the rule's name and its plain value."""
    raw = spec.model_dump(mode="json")
    sinks = raw.pop("sinks")
    found: dict[str, tuple[str, Any]] = {}

    def walk(path: Sequence[str], value: Any) -> None:
        name = ".".join(path)
        # The value of an option or a setting is compared as a whole, even if it is a dict; so is a format of records.
        whole = len(path) > 1 and (path[0] in ("options", "spark") or (path[0] in SOURCES and path[-1] == "value"))
        if isinstance(value, dict) and not whole:
            for key, held in value.items():
                walk([*path, key], held)
        else:
            found[name] = (path[0] if path[0] in WHOLE else name, value)

    for key, value in raw.items():
        walk([key], value)
    for sink in sinks:
        own = "table" if "table" in sink else "topic"
        # A topic may have a table's name.
        name = sink.pop(own) if own == "table" else f"topic:{sink.pop(own)}"
        found[f"sinks.{name}"] = (f"sinks.{own}", _WRITTEN)
        for rule in sink.pop("row_rules", ()):
            found[f"sinks.{name}.row_rules.{rule['id']}"] = ("sinks.row_rules", f"fails if {rule['fails']}")
        for key, value in sink.items():
            found[f"sinks.{name}.{key}"] = (f"sinks.{key}", value)
    found["sinks"] = ("sinks", spec.delta_sinks[0].table)
    return found


def _misfit(error: StreamwardenError, found: Mapping[str, Change], written: Written, wanted: JobSpec) -> list[Change]:
    """Return a contradiction with the checkpoint as changes of the fields concerned."""
    if error.code == "RESTORE_PARTITIONS":
        remedy = (
            f"Set state.partitions back to {written.partitions}, or rescale: `streamwarden rescale {wanted.name}"
            f" --partitions {wanted.state.partitions}`."
        )
        why = "a checkpoint keeps its number of state partitions"
        return [Change("state.partitions", written.partitions, wanted.state.partitions, Effect.REFUSED, why, remedy)]
    if error.code == "RESTORE_BUCKETS":
        had, buckets = written.spec.state.buckets, wanted.state.buckets
        why = "the keys of the existing state are divided into this number of buckets"
        return [Change("state.buckets", had, buckets, Effect.REFUSED, why, _ELSEWHERE)]
    if error.code == "RESTORE_BACKEND":
        before = stored_backend(written.settings)
        why = "one backend can't read another's state"
        return [Change("state.backend", before, wanted.state.backend, Effect.REFUSED, why, _ELSEWHERE)]
    if error.code == "RESTORE_SOURCE_CHANGED":
        why = "the checkpoint's offsets belong to the old source"
        return [
            replace(change, effect=Effect.REFUSED, why=why, remedy=_ELSEWHERE)
            for change in found.values()
            if _SOURCE_IDENTITY.fullmatch(change.field)
        ]
    if error.code == "RESTORE_WATERMARK_POLICY":
        before = written.settings.get("spark.sql.streaming.multipleWatermarkPolicy")
        why = "a checkpoint keeps its policy"
        return [Change("watermark_policy", before, wanted.watermark_policy, Effect.REFUSED, why, _ELSEWHERE)]
    if error.code == "RESTORE_JOB_VERSION":
        before, after = written.versions.get("job"), str(job_version(wanted.module))
        if written.partitions is None:
            why = "the module has a new version; the job has no state that it could not read"
            return [Change("module VERSION", before, after, Effect.SAVEPOINT, why)]
        why = "by its version, the module can't read the existing state"
        remedy = f"Bring back the module of version {before}, or deploy the job under another name."
        if migrates(written, wanted):
            why = "the existing state is of another version, which the module can migrate"
            commands = [f"`streamwarden {one} {wanted.name}`" for one in ("stop", "savepoint", "restore")]
            remedy = f"{', '.join(commands)}: the restore migrates the state."
        return [Change("module VERSION", before, after, Effect.REFUSED, why, remedy)]
    if error.code == "RESTORE_SPARK_VERSION":
        why = "this Spark version may not be able to read the checkpoint"
        # About a checkpoint: the remedy of a savepoint's error names no way back.
        remedy = CATALOGUE["CHECKPOINT_NEWER_SPARK"].remedy
        return [Change("Spark", written.versions.get("spark"), spark_version(), Effect.REFUSED, why, remedy)]
    raise AssertionError(f"{error.code} is no misfit of a spec and a checkpoint")
