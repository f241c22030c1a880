"""Compatibility of a job with a savepoint, or with a changed spec; checked before anything stops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import StateFileMissing, closure
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.landing.folder import landing_folder
from streamwarden.landing.planner import is_same
from streamwarden.landing.plans import Plans, read_plans
from streamwarden.model.savepoint import Manifest
from streamwarden.model.source_spec import DeltaSource, FileSource, KafkaSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.savepoints.history import is_on_history, other_history, table_id
from streamwarden.store.config import config_dir
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL, table_key
from streamwarden.store.module_text import module_text
from streamwarden.store.workspace import Workspace

__all__ = [
    "Written",
    "constant",
    "incompatibilities",
    "job_version",
    "migrates",
    "misfits",
    "missing_outputs",
    "readers_of",
    "spark_reads",
    "spark_version",
    "stored_backend",
    "taken_outputs",
]

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_BACKENDS = {"rocksdb": "RocksDBStateStoreProvider", "memory": "HDFSBackedStateStoreProvider"}
_SHOWN = 5


class Written(Protocol):
    """What is known about the writer of a checkpoint or of its savepoint."""

    @property
    def spec(self) -> JobSpec:
        """The job's spec at that time."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Spark and of the job's module, if a driver reported them."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Spark settings that the checkpoint fixes."""

    @property
    def partitions(self) -> int | None:
        """The number of state partitions, or None for a stateless job."""


def misfits(written: Written, spec: JobSpec) -> list[StreamwardenError]:
    """Return how a job's new spec contradicts what was written: code, settings, and the source's identity.

    Reads no checkpoint, and only the source's name; :func:`incompatibilities` checks the rest.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` for a module that isn't Python.
    """
    return [*_code(written, spec), *_settings(written, spec), *_other_sources(written.spec, spec)]


def stored_backend(settings: Mapping[str, str]) -> str | None:
    """Return the spec's name of the state backend in a checkpoint's settings; None for an unknown backend."""
    provider = settings.get(_PROVIDER, "")
    return next((name for name, ending in _BACKENDS.items() if provider.endswith(ending)), None)


def incompatibilities(
    workspace: Workspace, manifest: Manifest, spec: JobSpec, current: CheckpointRef | None
) -> list[StreamwardenError]:
    """Return every reason why a job can't start from a savepoint; none if it can.

    Parameters
    ----------
    manifest
        The savepoint's manifest.
    spec
        The job's new spec.
    current
        The job's current checkpoint, if any: the operators and schema of the query are read from it.

    Notes
    -----
    Does not run the query: its plan is inferred from the module's VERSION and the current checkpoint. Spark itself
    checks the schema again when the query starts. State that the module migrates is written anew: its settings,
    operators and schema may be others.
    """
    migrated = migrates(manifest, spec)
    return [
        *(error for error in _code(manifest, spec) if not (migrated and error.code == "RESTORE_JOB_VERSION")),
        *(() if migrated else _settings(manifest, spec)),
        *(() if migrated else _operators(workspace, manifest, current)),
        *_source(workspace, manifest, spec, current),
    ]


def job_version(module: str) -> int | None:
    """Return a job module's ``VERSION`` without importing it, or None if it is not a plain number.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` for a module that isn't Python: otherwise a driver would find it after the stop.
    """
    value = constant(module, "VERSION")
    return value if isinstance(value, int) else None


def migrates(written: Written, spec: JobSpec) -> bool:
    """Return whether a savepoint is of an earlier version of a job's module whose state the module can migrate.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``, as for :func:`job_version`, or if ``MIGRATES_FROM`` is no tuple.
    """
    before, known = written.versions.get("job"), constant(spec.module, "MIGRATES_FROM")
    if known is None or written.partitions is None:
        return False
    if not isinstance(known, tuple | list):
        raise StreamwardenError("JOB_MODULE_INVALID", f"{spec.module}: MIGRATES_FROM must be a tuple, such as (1,)")
    return before != str(job_version(spec.module)) and before in [str(one) for one in known]


def constant(module: str, name: str) -> object:
    """Return a literal that a module assigns to a name; None if there is none. Does not import the module.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` for a module that isn't Python.
    """
    # Where a driver finds it, whatever this process would import.
    text = module_text(module, config_dir().parent)
    return text.constant(name) if text is not None else None


def readers_of(workspace: Workspace, tables: Iterable[str], *, but: str) -> dict[str, list[str]]:
    """Return the deployed jobs that stream from tables, by table.

    Parameters
    ----------
    but
        A job to leave out.
    """
    chosen = set(tables)
    found: dict[str, list[str]] = {}
    for job in workspace.files.folders(CONTROL):
        desired = JobDocuments(workspace.storage, job).desired.read()
        sources = desired.spec.delta_sources if desired is not None and job != but else {}
        for table in sorted({source.table for source in sources.values()} & chosen):
            found.setdefault(table, []).append(job)
    return found


def taken_outputs(workspace: Workspace, spec: JobSpec, *, ran_before: bool) -> list[StreamwardenError]:
    """Return why a clone can't use its output tables, which it overwrites; empty if it can.

    Parameters
    ----------
    ran_before
        Whether the clone has run: tables that exist then are its own.
    """
    found = []
    mine = {sink.table for sink in spec.delta_sinks}
    for job in workspace.files.folders(CONTROL):
        desired = JobDocuments(workspace.storage, job).desired.read()
        if job != spec.name and desired is not None:
            shared = sorted(mine & {sink.table for sink in desired.spec.delta_sinks})
            found += [StreamwardenError("RESTORE_OUTPUT_TAKEN", f"{table} is written by {job}") for table in shared]
            both = {sink.topic for sink in spec.kafka_sinks} & {sink.topic for sink in desired.spec.kafka_sinks}
            found += [
                StreamwardenError("RESTORE_OUTPUT_TAKEN", f"topic {one} is written by {job}") for one in sorted(both)
            ]
    if not found and not ran_before:
        there = [table for table in sorted(mine) if DeltaLog(workspace.files, table).latest is not None]
        found += [StreamwardenError("RESTORE_OUTPUT_TAKEN", f"{table} exists already") for table in there]
    return found


def missing_outputs(workspace: Workspace, outputs: Iterable[OutputStart]) -> list[StreamwardenError]:
    """Return why tables can't be restored to the versions that a generation starts with; empty if all can.

    Parameters
    ----------
    outputs
        The tables' initial contents.
    """
    # Here, so that parsing a DAG does not load delta-rs.
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    found = []
    for output in outputs:
        name = output.source or output.table
        if output.version is None:
            continue
        uri, options = workspace.delta_rs(name)
        try:
            named = DeltaTable(uri, version=output.version, storage_options=options).file_uris()
        except (DeltaError, OSError) as error:
            found.append(StreamwardenError("RESTORE_OUTPUT_GONE", f"{name}, version {output.version}: {error}"))
            continue
        folder = table_key(name)
        there = {info.key for info in workspace.files.walk(folder)}
        gone = sorted({folder + unquote(path.rpartition(folder)[2]) for path in named} - there)
        if gone:
            found.append(
                StreamwardenError(
                    "RESTORE_OUTPUT_GONE",
                    f"{name}, version {output.version}: {len(gone)} of its files are missing, such as {gone[0]}",
                )
            )
    return found


def _code(written: Written, spec: JobSpec) -> Iterator[StreamwardenError]:
    before, now = written.versions.get("job"), job_version(spec.module)
    if before is not None and now is not None and before != str(now):
        yield StreamwardenError(
            "RESTORE_JOB_VERSION", f"{spec.module} is version {now}, the savepoint has version {before}"
        )
    writer = written.versions.get("spark")
    if writer is not None and not spark_reads(writer):
        yield StreamwardenError("RESTORE_SPARK_VERSION", f"written by {writer}, here is {spark_version()}")


def spark_reads(writer: str) -> bool:
    """Return whether the installed Spark can read what a version of Spark wrote: not a later one's, in minor versions.

    Raises
    ------
    StreamwardenError
        ``SPARK_MISSING``.
    """
    then, here = _release(writer), _release(spark_version())
    return then <= here and then[0] == here[0]


def spark_version() -> str:
    """Return the version of the installed Spark, without loading it.

    Raises
    ------
    StreamwardenError
        ``SPARK_MISSING``.
    """
    try:
        return version("pyspark")
    except PackageNotFoundError as error:
        raise StreamwardenError("SPARK_MISSING", f"{error}") from error


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _settings(written: Written, spec: JobSpec) -> Iterator[StreamwardenError]:
    policy = written.settings.get(_POLICY, spec.watermark_policy)
    if policy != spec.watermark_policy:
        what = f"{spec.name}: {spec.watermark_policy}, the savepoint has {policy}"
        yield StreamwardenError("RESTORE_WATERMARK_POLICY", what)
    if written.partitions is None:
        return
    if written.partitions != spec.state.partitions:
        yield StreamwardenError(
            "RESTORE_PARTITIONS", f"{spec.name}: {spec.state.partitions}, the savepoint has {written.partitions}"
        )
    if written.spec.state.buckets not in (None, spec.state.buckets):
        yield StreamwardenError(
            "RESTORE_BUCKETS", f"{spec.name}: {spec.state.buckets}, the savepoint has {written.spec.state.buckets}"
        )
    provider = written.settings.get(_PROVIDER, "")
    if provider and not provider.endswith(_BACKENDS[spec.state.backend]):
        yield StreamwardenError("RESTORE_BACKEND", f"{spec.name}: {spec.state.backend}, the savepoint has {provider}")


def _operators(workspace: Workspace, manifest: Manifest, current: CheckpointRef | None) -> Iterator[StreamwardenError]:
    if current is None:
        return
    try:
        reader = CheckpointReader(workspace.storage, current.path)
        batch = reader.last_commit()
        offsets = reader.offsets(batch) if batch is not None else None
        if offsets is None:
            return
        now = closure(workspace.files, current.path, offsets).operators
    except (StateFileMissing, StreamwardenError) as error:
        # A damaged checkpoint is a reason to restore; Spark checks when the query starts.
        if isinstance(error, StreamwardenError) and error.code != "CHECKPOINT_DAMAGED":
            raise
        return
    have = [(one.id, one.name) for one in manifest.operators]
    want = [(one.id, one.name) for one in now]
    if have != want:
        yield StreamwardenError("RESTORE_OPERATORS", f"the savepoint has {_names(have)}; the job has {_names(want)}")
        return
    for then, mine in zip(manifest.operators, now, strict=True):
        if then.schema_sha256 != mine.schema_sha256:
            yield StreamwardenError("RESTORE_STATE_SCHEMA", f"operator {then.id} ({then.name})")


def _names(operators: list[tuple[int, str]]) -> str:
    return ", ".join(f"{number} {name}" for number, name in operators) or "none"


def _other_sources(then: JobSpec, now: JobSpec) -> Iterator[StreamwardenError]:
    if set(then.inputs) != set(now.inputs):
        what = f"the sources are {', '.join(sorted(now.inputs))}, and were {', '.join(sorted(then.inputs))}"
        yield StreamwardenError("RESTORE_SOURCE_CHANGED", what)
        return
    for name, source in then.inputs.items():
        yield from _other_source(source, now.inputs[name])


def _other_source(then: Source, now: Source) -> Iterator[StreamwardenError]:
    if isinstance(then, DeltaSource) and isinstance(now, DeltaSource):
        if then.table != now.table:
            yield StreamwardenError("RESTORE_SOURCE_CHANGED", f"table {now.table}, then {then.table}")
    elif isinstance(then, FileSource) and isinstance(now, FileSource):
        if then.path != now.path:
            yield StreamwardenError("RESTORE_SOURCE_CHANGED", f"folder {now.path}, then {then.path}")
    elif isinstance(then, KafkaSource) and isinstance(now, KafkaSource):
        # A topic may be added: it is read from its beginning. Spark fails if one that it has read is left out.
        if then.topic_pattern != now.topic_pattern or set(then.names) - set(now.names):
            yield StreamwardenError("RESTORE_SOURCE_CHANGED", f"{now.title}, then {then.title}")
    else:
        yield StreamwardenError("RESTORE_SOURCE_CHANGED", f"{now.kind}, then {then.kind}")


def _source(
    workspace: Workspace, manifest: Manifest, spec: JobSpec, current: CheckpointRef | None
) -> Iterator[StreamwardenError]:
    other = list(_other_sources(manifest.spec, spec))
    if other:
        yield from other
        return
    for name, offset in manifest.positions.items():
        # Of Kafka only its servers know whether a topic still has its records: Spark fails when it reads them.
        source = spec.inputs[name]
        if offset is not None and is_on_history(workspace, manifest.spec, offset):
            if spec.history is None or other_history(manifest.spec, spec):
                what = "the savepoint was taken while the job read its history, and source.history was another one"
                yield StreamwardenError("RESTORE_SOURCE_CHANGED", what)
            else:
                yield from _delta_source(workspace, spec.history.table, offset)
        elif offset is not None and isinstance(source, DeltaSource):
            yield from _delta_source(workspace, source.table, offset)
        elif offset is not None and isinstance(source, FileSource) and current is not None:
            yield from _landed(workspace, source, current, int(parse(offset)["logOffset"]))


def _landed(
    workspace: Workspace, source: FileSource, current: CheckpointRef, position: int
) -> Iterator[StreamwardenError]:
    gone = _gone_after(workspace, source, current, position)
    if gone:
        more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
        yield StreamwardenError(
            "RESTORE_SOURCE_GONE",
            f"{len(gone)} later files are missing or were replaced: {', '.join(gone[:_SHOWN])}{more}",
        )


def _delta_source(workspace: Workspace, table: str, offset: str) -> Iterator[StreamwardenError]:
    log, position = DeltaLog(workspace.files, table), parse(offset)
    needed = int(position["reservoirVersion"])
    if log.latest is None:
        yield StreamwardenError("RESTORE_SOURCE_GONE", "the source table does not exist")
    elif (known := _table_id(workspace, table)) is not None and known != position["reservoirId"]:
        yield StreamwardenError("RESTORE_SOURCE_GONE", f"the source table was created anew: {known}")
    elif needed > log.latest + 1:
        yield StreamwardenError(
            "RESTORE_SOURCE_GONE", f"the source table is at version {log.latest}, the savepoint continues from {needed}"
        )
    elif log.versions[0] > needed:
        yield StreamwardenError(
            "RESTORE_SOURCE_GONE",
            f"the source table's log begins with version {log.versions[0]}, the savepoint continues from {needed}",
        )


def _table_id(workspace: Workspace, table: str) -> str | None:
    """Return Delta's id of a table; None if its log is unreadable, which its job will report."""
    from deltalake.exceptions import DeltaError

    try:
        return table_id(workspace, table)
    except (DeltaError, OSError):
        return None


def _gone_after(workspace: Workspace, source: FileSource, current: CheckpointRef, position: int) -> list[str]:
    """Return what the job has read after a position in its source's log and could not read again unchanged."""
    try:
        reads = list(read_plans(workspace, current.path, first=position + 1))
        there = landing_folder(workspace, source).look().files if reads else {}
    except StreamwardenError as error:
        if error.code == "CHECKPOINT_DAMAGED":
            # A damaged checkpoint is a reason to restore.
            return []
        if error.code != "LANDING_UNREADABLE":
            raise
        there = {}
    gone: set[str] = set()
    for read in reads:
        plan = read.plan_of()
        if plan is None:
            gone |= set() if _exists(read.path) else {read.path}
        else:
            files = [file for file in Plans(workspace.storage, plan[0]).read(plan[1]) if file.refused is None]
            changed = [file for file in files if not is_same(file, there.get(file.name))]
            # A file that was read again in its new version will be read again that way.
            newest = Plans(workspace.storage, plan[0]).known({plan[1]})[0] if changed else {}
            gone |= {file.label for file in changed if not is_same(newest[file.name], there.get(file.name))}
    return sorted(gone)


def _exists(path: str) -> bool:
    # Files on other machines are assumed to exist: nothing else deletes them unnoticed while a job reads them.
    scheme, is_address, rest = path.partition("://")
    return (is_address != "" and scheme != "file") or Path(rest or path).exists()
