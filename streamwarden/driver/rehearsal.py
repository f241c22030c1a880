"""What a driver will do for its job, done before in a folder that goes afterwards, when nobody waits for it."""

from __future__ import annotations

import logging
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import settings_for
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.driver.pipeline.source import missing_source, open_plans, open_source
from streamwarden.driver.repartition import repartition
from streamwarden.driver.state_digest import state_digests
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.landing.folder import landing_folder
from streamwarden.landing.plans import Plans
from streamwarden.model.spec import DeltaSource, FileSource, JobSpec, KafkaSource, Source
from streamwarden.spark.session import BASE
from streamwarden.storage import LocalStorage
from streamwarden.store.workspace import Workspace

__all__ = ["rehearse"]

_log = logging.getLogger(__name__)
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

_BATCHES = 3
"""At most. The second takes about a third of the first; the fourth is no faster than the third."""

_SECONDS = 30.0
"""Until a rehearsal is over, wherever it stands: of a source whose commits are large one batch may take minutes."""

_RECORDS = 1000
"""A batch of Kafka's. 1000: enough to be computed like a large one, and a moment's work."""

_INTERVAL = timedelta(seconds=1)
"""Short, and long enough for it to be stopped between two batches."""

_CHECKPOINT = "checkpoint"
_POLL_S = 0.1


def rehearse(session: SparkSession, workspace: Workspace, spec: JobSpec, module: StreamingJob, *, state: bool) -> None:
    """Run the job's own query for some batches, with a checkpoint and tables in a folder that goes afterwards.

    A JVM's first batch takes three times as long as its second: classes are loaded and compiled, queries planned. A
    driver that stands by has the time for it; its job, once it is stopped, has not. A little of the job's source is
    read, a file or a commit a batch: of a table what was committed last, of a folder or a topic what a first start
    would begin with, the oldest as a rule. Nothing of the job's is written. A rehearsal that fails is told in the log
    and hinders nothing. On a cluster there is none, nor where the source has nothing.

    Parameters
    ----------
    session
        The driver's.
    workspace, spec, module
        The job.
    state
        Whether to digest and to repartition the state, too.
    """
    if not str(session.sparkContext.master).startswith("local"):
        # A cluster's executors have other folders, and are another driver's until then.
        return
    own = session.newSession()
    # S3's refuses local folders.
    own.conf.set(_FILE_MANAGER, BASE[_FILE_MANAGER])
    try:
        if missing_source(session, workspace, spec) is not None:
            return
        with tempfile.TemporaryDirectory(prefix="streamwarden-rehearsal-") as name:
            folder = Path(name)
            if _run(own, workspace, spec, module, folder) and state:
                _work_on_state(own, folder)
        _open_outputs(own, workspace, spec)
    except Exception:
        _log.warning("a rehearsal failed; what comes will take longer", exc_info=True)


def _run(session: SparkSession, workspace: Workspace, spec: JobSpec, module: StreamingJob, folder: Path) -> bool:
    """Tell whether it came to its end; if not, a batch may be left begun, and its state cannot be worked on."""
    sinks = {
        sink.output: DeltaSink(session, str(folder / sink.output), sink, module.OUTPUTS[sink.output], "rehearsal")
        for sink in spec.sinks
    }
    checkpoint = CheckpointReader(LocalStorage(folder), _CHECKPOINT)
    writer = BatchWriter(spec, module, sinks, checkpoint, lambda: None)
    writer.hurry.set()
    small = spec.model_copy(
        update={
            "name": f"{spec.name} rehearsal",
            "source": spec.source.model_copy(update=_little(spec.source)),
            "trigger": spec.trigger.model_copy(update={"interval": _INTERVAL}),
        }
    )
    rows = module.transform(_some(session, workspace, small, folder), settings_for(spec, module))
    query = RunningQuery(small, rows, writer, str(folder / _CHECKPOINT), checkpoint)
    deadline = time.monotonic() + _SECONDS
    while not _is_enough(session):
        failure = query.failure()
        if failure is not None:
            raise failure.error
        if time.monotonic() >= deadline:
            query.abandon()
            return False
        time.sleep(_POLL_S)
    query.stop()
    return True


def _little(source: Source) -> dict[str, int]:
    return {"max_offsets_per_batch": _RECORDS} if isinstance(source, KafkaSource) else {"max_files_per_batch": 1}


def _some(session: SparkSession, workspace: Workspace, spec: JobSpec, folder: Path) -> DataFrame:
    if isinstance(spec.source, FileSource):
        # Of the newest files: older ones may be archived by now.
        files = sorted(landing_folder(workspace, spec.source).look().files.values(), key=lambda file: file.modified_ms)
        plans = Plans(LocalStorage(folder), "plans")
        plans.make_folder()
        for number, file in enumerate(files[-_BATCHES:]):
            plans.create(number, [file])
        return open_plans(session, str(folder / "plans"), spec.resources.cores)
    if not isinstance(spec.source, DeltaSource):
        return open_source(session, workspace, spec)
    latest = DeltaLog(workspace.files, f"tables/{spec.source.table}").latest or 0
    return open_source(session, workspace, spec, since_version=max(latest + 1 - _BATCHES, 0))


def _is_enough(session: SparkSession) -> bool:
    """Tell whether all batches are done, or there is nothing left to read."""
    for query in session.streams.active:
        took = [one.durationMs["triggerExecution"] for one in query.recentProgress if "addBatch" in one.durationMs]
        if len(took) >= _BATCHES:
            return True
        status = query.status
        # Before its first progress it has not looked yet.
        if query.lastProgress and not status["isTriggerActive"] and not status["isDataAvailable"]:
            return True
    return False


def _open_outputs(session: SparkSession, workspace: Workspace, spec: JobSpec) -> None:
    """Read the logs of the job's tables: later only what was committed since is read."""
    for sink in spec.sinks:
        if DeltaLog(workspace.files, f"tables/{sink.table}").latest is not None:
            _ = session.read.format("delta").load(workspace.table(sink.table)).schema


def _work_on_state(session: SparkSession, folder: Path) -> None:
    batch = CheckpointReader(LocalStorage(folder), _CHECKPOINT).last_commit()
    if batch is not None:
        checkpoint, partitions = str(folder / _CHECKPOINT), int(session.conf.get("spark.sql.shuffle.partitions") or 1)
        state_digests(session, checkpoint, batch, partitions)
        repartition(session, checkpoint, partitions + 1)
