"""Keeping a repartitioned copy of a checkpoint up with the original, while the original's query runs on.

Each batch that the original has committed is begun in the copy, with the offsets, the watermark and the clock that it
had there: its ``offsets/N`` is written into the copy, with the copy's number of partitions, and the query that starts
on the copy finishes it, as a query does after a crash. So the copy's state is not merely one that could have come
about; it is the original's.

Source: Spark 4.2's ``MicroBatchExecution.populateStartOffsets``, which runs a batch that was begun and not committed
with the offsets that are written of it.
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
    """Tell whether the query that will be the job's had better replay the last batch, or be started after that.

    If it does, its start and the load of its state are over when the job is handed over. But a query looks for its
    second batch only when the clock comes to a whole multiple of the trigger interval (Spark's
    ``ProcessingTimeExecutor.nextBatchTime``); or when it is woken, which it is as the driver takes it over, but by
    Spark 4.2 only. One that is started afterwards begins a batch at once; its start takes about what a replay takes,
    which is one, too.

    Parameters
    ----------
    now
        Seconds since the epoch.
    interval
        The job's trigger interval, seconds.
    replay
        What a replay takes, seconds; 0 where none was seen.
    """
    return interval - now % interval <= 2 * replay


class Follower:
    """A copy that follows.

    Parameters
    ----------
    workspace
        Where both lie.
    original, copy
        The checkpoints' folders.
    shift
        By how much a batch's id is higher in the copy: its repartitioning was a batch.
    partitions
        The copy's.
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
        """The original's batch that the copy stands at."""
        last = self._copy.last_commit()
        assert last is not None
        return last - self._shift

    @property
    def behind(self) -> int:
        """How many batches the original has committed since."""
        last = self._original.last_commit()
        assert last is not None
        return last - self.batch

    @property
    def outrun(self) -> bool:
        """Whether the original has removed its next batch from its log: it keeps ``state.min_batches_to_retain``."""
        return self._original.offsets(self.batch + 1) is None

    def begin(self) -> int:
        """Write into the copy what the original began its next batch with; return its id in the original.

        Can be repeated.

        Raises
        ------
        StreamwardenError
            ``RESCALE_FAILED`` if the original has removed it already, or writes a format that this does not know.
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
        # What a file source has listed: its offsets are numbers of these files.
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
        """See that the copy has finished a batch of the original, and come to the same watermark.

        Raises
        ------
        StreamwardenError
            ``RESCALE_STATE_DIFFERS``.
        """
        if self.batch != batch:
            raise StreamwardenError("RESCALE_FAILED", f"{self._paths[1]} stands at {self.batch}, and not at {batch}")
        original, copy = self._paths
        ids = (f"{original}/commits/{batch}", f"{copy}/commits/{batch + self._shift}")
        watermarks = [next_watermark_ms(self._workspace.files.read(key)) for key in ids]
        if watermarks[0] != watermarks[1]:
            raise StreamwardenError(
                "RESCALE_STATE_DIFFERS",
                f"after batch {batch} the watermark is {watermarks[0]}, and {watermarks[1]} in the copy",
            )
