"""Keep a repartitioned copy of a checkpoint up to date while the original's query runs.

Each committed batch of the original is begun in the copy, with the same offsets, watermark and clock. To begin it, this
module writes its ``offsets/N`` into the copy, with the copy's number of partitions. The query that starts on the copy
finishes the batch, as a query does after a crash. So the copy's state is exactly the original's, and not merely a
possible one.

Source: Spark 4.2's ``MicroBatchExecution.populateStartOffsets``, which runs a batch that was begun and not committed,
with its recorded offsets.
"""

from __future__ import annotations

from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader, changed_offsets, next_watermark_ms
from streamwarden.formats.checkpoint_files import source_needed
from streamwarden.store.workspace import Workspace

__all__ = ["Follower", "pays_to_start_ahead"]

_PARTITIONS = "spark.sql.shuffle.partitions"


def pays_to_start_ahead(now: float, interval: float, replay: float) -> bool:
    """Return whether the job's next query should replay the last batch itself, instead of starting after it.

    If it replays, its start and the load of its state are over at the handover. But its second batch then
    waits until the clock reaches a whole multiple of the interval (Spark's ``ProcessingTimeExecutor.nextBatchTime``).
    On Spark 4.2 only, the driver wakes it at the takeover. A query that is started after the replay begins a batch at
    once; its start takes about as long as a replay.

    Parameters
    ----------
    now
        Seconds since the epoch.
    interval
        The job's trigger interval, seconds.
    replay
        Duration of a replay, seconds; 0 if none was measured.
    """
    return interval - now % interval <= 2 * replay


class Follower:
    """A copy that follows the original.

    Parameters
    ----------
    workspace
        The workspace of both checkpoints.
    original, copy
        The checkpoints' folders.
    shift
        The offset of the copy's batch ids: its repartitioning was a batch.
    partitions
        The copy's number of partitions.
    """

    def __init__(self, workspace: Workspace, original: str, copy: str, *, shift: int, partitions: int) -> None:
        self._workspace = workspace
        self._paths = original, copy
        self._original = CheckpointReader(workspace.storage, original)
        self._copy = CheckpointReader(workspace.storage, copy)
        self._shift = shift
        self._partitions = partitions

    @property
    def batch(self) -> int:
        """The original's batch that the copy has reached."""
        last = self._copy.last_commit()
        assert last is not None
        return last - self._shift

    @property
    def behind(self) -> int:
        """Number of batches that the original has committed since."""
        last = self._original.last_commit()
        assert last is not None
        return last - self.batch

    @property
    def outrun(self) -> bool:
        """Whether the original has removed its next batch from its log: it keeps ``state.min_batches_to_retain``."""
        return self._original.offsets(self.batch + 1) is None

    def begin(self) -> int:
        """Begin the original's next batch in the copy; return its id in the original.

        Can be repeated.

        Raises
        ------
        StreamwardenError
            ``RESCALE_FAILED`` if the original has already removed the batch, or writes an unknown format.
        """
        batch = self.batch + 1
        original, copy = self._paths
        offsets, files = self._original.offsets(batch), self._workspace.files

        def repartitioned(metadata: dict[str, Any]) -> None:
            metadata["conf"][_PARTITIONS] = str(self._partitions)

        try:
            begun = changed_offsets(files.read(f"{original}/offsets/{batch}"), repartitioned)
        except FileNotFoundError as error:
            raise StreamwardenError(
                "RESCALE_FAILED", f"{original}: batch {batch} is not in its log any more"
            ) from error
        except ValueError as error:
            raise StreamwardenError("RESCALE_FAILED", f"{original}/offsets/{batch} has {error}") from error
        assert offsets is not None
        there = {info.key[len(copy) :] for info in files.walk(f"{copy}/sources")}
        # The files that a file source has listed: its offsets are numbers of these files.
        missing = [
            path
            for info in files.walk(f"{original}/sources")
            if (path := info.key[len(original) :]) not in there
            and not path.rsplit("/", 1)[1].startswith(".")
            and source_needed(path.lstrip("/"), offsets)
        ]
        files.copy_many([(original + path, copy + path) for path in missing])
        files.write(f"{copy}/offsets/{batch + self._shift}", begun)
        return batch

    def check(self, batch: int) -> None:
        """Check that the copy has finished a batch of the original and reached the same watermark.

        Raises
        ------
        StreamwardenError
            ``RESCALE_STATE_DIFFERS``.
        """
        if self.batch != batch:
            raise StreamwardenError("RESCALE_FAILED", f"{self._paths[1]} is at {self.batch}, not at {batch}")
        original, copy = self._paths
        ids = (f"{original}/commits/{batch}", f"{copy}/commits/{batch + self._shift}")
        try:
            watermarks = [next_watermark_ms(self._workspace.files.read(key)) for key in ids]
        except FileNotFoundError:
            # A quick job has removed the entry meanwhile. Watermarks only grow: a later batch shows a difference, too.
            return
        if watermarks[0] != watermarks[1]:
            raise StreamwardenError(
                "RESCALE_STATE_DIFFERS",
                f"after batch {batch} the watermark is {watermarks[0]}, and {watermarks[1]} in the copy",
            )
