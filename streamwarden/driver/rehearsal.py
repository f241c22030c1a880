"""Rehearse a driver's work for its job in a temporary folder, while nobody waits for it."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.job_session import adapt_session
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import output_mode
from streamwarden.driver.pipeline.query import POLL_S, RunningQuery
from streamwarden.driver.pipeline.row_rules import output_schemas
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.driver.pipeline.source import job_rows, missing_source, open_plans, open_source
from streamwarden.driver.repartition import repartition
from streamwarden.driver.state_digest import state_digests
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.landing.folder import landing_folder
from streamwarden.landing.plans import Plans
from streamwarden.model.source_spec import THE_SOURCE, DeltaSource, FileSource, KafkaSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.runtime.polling import Deadline
from streamwarden.spark.session import BASE
from streamwarden.storage import LocalStorage
from streamwarden.store.workspace import Workspace

__all__ = ["rehearse"]

_log = logging.getLogger(__name__)
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

_BATCHES = 3
"""Maximum. The second batch takes about a third of the first; the fourth is no faster than the third."""

_SECONDS = 30.0
"""Seconds until a rehearsal is ended at any point: if a source's commits are large, one batch may take minutes."""

_RECORDS = 1000
"""Records in a Kafka batch. 1000: enough to be computed like a large batch, and quick."""

_INTERVAL = timedelta(seconds=1)
"""Short, and long enough to be stopped between two batches."""

_CHECKPOINT = "checkpoint"


def rehearse(
    session: SparkSession,
    workspace: Workspace,
    spec: JobSpec,
    module: StreamingJob,
    *,
    state: bool,
    warm: bool = False,
    needless: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the job's own query for some batches, with a checkpoint and tables in a temporary folder.

    A JVM's first batch takes three times as long as its second, because classes are loaded and compiled and queries
    planned. A standby driver has time for that; a stopped job has not. The rehearsal reads a little of the job's
    source, one file or commit per batch. From a table it reads the newest commits; from a folder or topic what a first
    start reads first, usually the oldest. It writes nothing of the job's. A failure is logged and has no other effect.
    There is no rehearsal on a cluster, nor if the source is empty.

    Parameters
    ----------
    session
        The driver's session.
    workspace, spec, module
        The job.
    state
        Whether to rehearse the digest and the repartition of the state, too.
    warm
        Whether the session has rehearsed jobs before: one batch is enough, which says what this job loads of its own.
    needless
        Asked all the while: once it is true, the rehearsal ends at once.

    Returns
    -------
    bool
        Whether it did what it could: it did not fail, and was not needless. One that ran out of time counts.
    """
    if not str(session.sparkContext.master).startswith("local"):
        # A cluster's executors have other folders, and until the takeover they belong to another driver.
        return False
    own = session.newSession()
    # A new session has the settings that the JVM was started with: of a spare, those of another job.
    adapt_session(own, workspace, spec)
    # S3's file manager rejects local folders.
    own.conf.set(_FILE_MANAGER, BASE[_FILE_MANAGER])
    try:
        if missing_source(session, workspace, spec) is not None:
            return False
        with tempfile.TemporaryDirectory(prefix="streamwarden-rehearsal-") as name:
            folder = Path(name)
            completed = _run(own, workspace, spec, module, folder, needless, 1 if warm else _BATCHES)
            if completed and state and not needless():
                _work_on_state(own, folder)
        _open_outputs(own, workspace, spec)
    except Exception:
        _log.warning("a rehearsal failed; the first batch will take longer", exc_info=True)
        return False
    return not needless()


def _run(
    session: SparkSession,
    workspace: Workspace,
    spec: JobSpec,
    module: StreamingJob,
    folder: Path,
    needless: Callable[[], bool],
    batches: int,
) -> bool:
    """Return whether it completed; if not, a batch may be left begun, and its state is unusable."""
    schemas = output_schemas(spec, module)
    sinks = {
        sink.output: DeltaSink(session, str(folder / sink.output), sink, schemas[sink.output], "rehearsal")
        for sink in spec.delta_sinks
    }
    checkpoint = CheckpointReader(LocalStorage(folder), _CHECKPOINT)
    writer = BatchWriter(spec, module, sinks, checkpoint, lambda: None)
    writer.hurry.set()
    small = spec.model_copy(
        update={
            "name": f"{spec.name} rehearsal",
            **_little_of(spec),
            "trigger": spec.trigger.model_copy(update={"interval": _INTERVAL}),
        }
    )
    opener = functools.partial(_some, session, workspace, small, folder)
    rows = job_rows(session, workspace, small, module, opener=opener)
    query = RunningQuery(small, rows, writer, str(folder / _CHECKPOINT), checkpoint, output_mode(module))
    deadline = Deadline(_SECONDS)
    while not _is_enough(session, batches):
        failure = query.failure()
        if failure is not None:
            raise failure.error
        if needless() or not deadline.pause(POLL_S):
            query.abandon()
            return False
    query.stop()
    return True


def _little_of(spec: JobSpec) -> dict[str, object]:
    little = {name: one.model_copy(update=_little(one)) for name, one in spec.inputs.items()}
    return {"source": little[THE_SOURCE]} if spec.sources is None else {"sources": little}


def _little(source: Source) -> dict[str, int]:
    return {"max_offsets_per_batch": _RECORDS} if isinstance(source, KafkaSource) else {"max_files_per_batch": 1}


def _some(
    session: SparkSession, workspace: Workspace, spec: JobSpec, folder: Path, name: str, source: Source
) -> DataFrame:
    if isinstance(source, FileSource):
        # Uses the newest files: older files may be archived by now.
        files = sorted(landing_folder(workspace, source).look().files.values(), key=lambda file: file.modified_ms)
        plans = Plans(LocalStorage(folder), "plans")
        plans.make_folder()
        for number, file in enumerate(files[-_BATCHES:]):
            plans.create(number, [file])
        return open_plans(session, str(folder / "plans"), spec.resources.cores, name)
    if not isinstance(source, DeltaSource):
        return open_source(session, workspace, spec, name)
    latest = DeltaLog(workspace.files, source.table, published=source.published).latest or 0
    return open_source(session, workspace, spec, name, since_version=max(latest + 1 - _BATCHES, 0))


def _is_enough(session: SparkSession, batches: int) -> bool:
    """Return whether so many batches are done, or no input is left."""
    for query in session.streams.active:
        took = [one.durationMs["triggerExecution"] for one in query.recentProgress if "addBatch" in one.durationMs]
        if len(took) >= batches:
            return True
        status = query.status
        # Before its first progress the query has not looked for input yet.
        if query.lastProgress and not status["isTriggerActive"] and not status["isDataAvailable"]:
            return True
    return False


def _open_outputs(session: SparkSession, workspace: Workspace, spec: JobSpec) -> None:
    """Read the logs of the job's tables: afterwards only later commits need to be read."""
    for sink in spec.delta_sinks:
        if DeltaLog(workspace.files, sink.table).latest is not None:
            _ = session.read.format("delta").load(workspace.table(sink.table)).schema


def _work_on_state(session: SparkSession, folder: Path) -> None:
    batch = CheckpointReader(LocalStorage(folder), _CHECKPOINT).last_commit()
    if batch is not None and (folder / _CHECKPOINT / "state").exists():
        checkpoint, partitions = str(folder / _CHECKPOINT), int(session.conf.get("spark.sql.shuffle.partitions") or 1)
        state_digests(session, checkpoint, batch, partitions)
        repartition(session, checkpoint, partitions + 1)
