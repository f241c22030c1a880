"""Feeds a landing folder with trips the way a collector does: file by file, by the trips' own clock, some of them late.

Every trip lands exactly once, also when the replay is stopped or killed and started again. Before a file appears, a
state document says that it is prepared; a single rename then makes it appear and takes it from where it was prepared.
So after a crash, a file that is still prepared has not landed, and one that is gone has, whatever a consumer did with
it since.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pyarrow as pa

from nyc_taxi.trips.landing import LandingFolder
from nyc_taxi.trips.plan import ReplayPlan, make_plan
from streamwarden.errors import StreamwardenError
from streamwarden.model.durations import format_duration

__all__ = ["Replay", "ReplayOptions", "ReplayProgress", "stop_on_signals"]

_STATE = "state.json"
_VERSION = 1
_NAME = re.compile(r"trips-(\d+)\.parquet")

# Short, so that a stop acts at once; slept, not waited for: see stop_on_signals().
_STEP = 0.05
_PROGRESS_EVERY = 0.5


@dataclass(frozen=True)
class ReplayOptions:
    """How trips land.

    Parameters
    ----------
    speed
        Event seconds in a second, or ``"max"``: as fast as files can be written. By default 600: a day of trips in
        2.4 minutes. May change from one start to the next; all other options belong to the replay once it has begun.
    late_share
        The share of trips that arrive late. The others arrive when they begin. By default one in twenty.
    late_min, late_max
        How late the late ones are, evenly spread. A watermark of `late_max` drops none of them as long as files are
        read in order. By default 5 minutes to 2 hours.
    file_every
        The event time that one file covers; it lands when that has passed. By default 15 minutes. A quarter of an
        hour without trips has no file.
    start, end
        Leave out trips before and from here on, by pickup; trips without a believable pickup go with their
        neighbours in the source. Without time zone, like the trips. None leaves out nothing.
    seed
        Which trips are late, and how late. A trip keeps its delay whatever it is replayed with.
    """

    speed: float | Literal["max"] = 600.0
    late_share: float = 0.05
    late_min: timedelta = timedelta(minutes=5)
    late_max: timedelta = timedelta(hours=2)
    file_every: timedelta = timedelta(minutes=15)
    start: datetime | None = None
    end: datetime | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        def require(holds: bool, what: str) -> None:
            if not holds:
                raise StreamwardenError("REPLAY_OPTIONS_INVALID", what)

        # NaN is neither above nor below anything, so it fails these too.
        require(self.speed == "max" or 0 < self.speed < float("inf"), f"speed is {self.speed}: more than 0, or max")
        require(0 <= self.late_share <= 1, f"late_share is {self.late_share}: from 0 to 1")
        require(timedelta(0) <= self.late_min, f"late_min is {self.late_min}: not below 0")
        require(self.late_min <= self.late_max, f"late_max {self.late_max} is below late_min {self.late_min}")
        require(self.file_every >= timedelta(seconds=1), f"file_every is {self.file_every}: at least 1s")
        for name in ("start", "end"):
            moment = getattr(self, name)
            require(moment is None or moment.tzinfo is None, f"{name} has a time zone: give New York's clock time")
        if self.start is not None and self.end is not None:
            require(self.start < self.end, f"end {self.end} is not after start {self.start}")


@dataclass(frozen=True)
class ReplayProgress:
    """Where a replay stands.

    Parameters
    ----------
    files, total_files
        Landed, by this and earlier runs of the same replay, and in all.
    trips, total_trips
        The same for trips.
    clock
        The event clock.
    done
        Whether everything has landed.
    """

    files: int
    total_files: int
    trips: int
    total_trips: int
    clock: datetime
    done: bool


@dataclass(frozen=True)
class _State:
    """What ``.replay/state.json`` says. Files before `prepared` have landed; `prepared` itself if it's not hidden."""

    options: dict[str, Any]
    source: str
    files: int
    first_number: int
    prepared: int = -1
    version: int = _VERSION

    @classmethod
    def from_json(cls, data: bytes, where: Path) -> _State:
        try:
            state = cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StreamwardenError("DOCUMENT_INVALID", f"{where}/.replay/{_STATE}: {error}") from error
        if state.version != _VERSION:
            raise StreamwardenError("DOCUMENT_INVALID", f"{where}/.replay/{_STATE} is of version {state.version}")
        return state


class Replay:
    """A replay of trips into a landing folder.

    Does not check trips, drop any, or keep them apart from what a consumer does with the files. One at a time for a
    folder.

    Parameters
    ----------
    trips
        From :func:`~nyc_taxi.trips.tlc.read_tlc` or :func:`~nyc_taxi.trips.generator.generate`. Column types
        are kept; ``card_id`` is added.
    landing
        A local folder, made when needed. Files are called ``trips-000000.parquet`` and so on.
    options
        See :class:`ReplayOptions`.
    restart
        Land everything again, under names that have not been used before, even with other options. By default an
        earlier replay of the same trips is resumed.
    """

    def __init__(
        self, trips: pa.Table, landing: Path, options: ReplayOptions | None = None, *, restart: bool = False
    ) -> None:
        self.options = options or ReplayOptions()
        self._trips = trips
        self._folder = LandingFolder(landing)
        self._restart = restart

    @cached_property
    def plan(self) -> ReplayPlan:
        """What lands when. ``plan.trips`` is exactly what all files together hold, for comparisons."""
        given = {field.name: getattr(self.options, field.name) for field in fields(self.options)}
        del given["speed"]
        return make_plan(self._trips, **given)

    def run(
        self,
        on_progress: Callable[[ReplayProgress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> ReplayProgress:
        """Land files until all are there, or until asked to stop.

        Parameters
        ----------
        on_progress
            Called at the beginning, after each file, and twice a second while the clock is waited for.
        stop
            Set, it ends the run within a tenth of a second; see :func:`stop_on_signals`. A file that is not complete
            by the event clock does not land: the next run begins with it.

        Raises
        ------
        StreamwardenError
            ``REPLAY_CONFLICT``: the folder holds another replay. ``REPLAY_RUNNING``: another one is feeding it.
            ``REPLAY_SOURCE_INVALID``: there is nothing to replay. ``DOCUMENT_INVALID``: the state can't be read.
        """
        report = on_progress or (lambda _: None)
        stop = stop or threading.Event()
        plan = self.plan
        with self._folder.exclusive():
            state = self._begin()
            # A second run of this object goes on, too.
            self._restart = False
            ready = state.prepared >= 0 and self._folder.is_prepared(_file_name(state, state.prepared))
            first = state.prepared if ready else state.prepared + 1
            clock = _Clock(plan, first, self.options.speed)
            progress = self._progress(first, clock.now(first))
            report(progress)
            for file in range(first, plan.files):
                if stop.is_set():
                    break
                name = _file_name(state, file)
                if file != state.prepared:
                    # Never the other way round: what the state calls prepared is a complete file.
                    self._folder.prepare(name, plan.file(file))
                    state = replace(state, prepared=file)
                    self._write(state)
                while clock.wait(file, stop):
                    report(self._progress(file, clock.now(file)))
                if stop.is_set():
                    break
                self._folder.land(name)
                progress = self._progress(file + 1, plan.clock(file))
                report(progress)
            return progress

    def _begin(self) -> _State:
        """Return the state to go on from, written if it is new."""
        entry = self._folder.documents.read(_STATE)
        found = _State.from_json(entry.data, self._folder.path) if entry is not None else None
        fresh = _State(_content(self.options), self.plan.fingerprint, self.plan.files, first_number=0)
        numbers = [int(match[1]) for name in self._folder.landed() if (match := _NAME.fullmatch(name))]
        if not self._restart:
            if found is not None:
                _compare(found, fresh, self._folder.path)
                return found
            if numbers:
                raise StreamwardenError(
                    "REPLAY_CONFLICT", f"{self._folder.path} holds files of a replay whose state (.replay) is gone"
                )
        # Also beyond files that landed and were taken away: Spark remembers names, and would pass over a known one.
        known = [number + 1 for number in numbers]
        if found is not None:
            known.append(found.first_number + found.files)
        fresh = replace(fresh, first_number=max(known, default=0))
        # The state first: of an old state with nothing prepared any more, one would think that its file had landed.
        self._write(fresh)
        self._folder.clear_prepared()
        return fresh

    def _write(self, state: _State) -> None:
        self._folder.documents.write(_STATE, json.dumps(asdict(state), indent=1).encode())

    def _progress(self, files: int, clock: datetime) -> ReplayProgress:
        plan = self.plan
        total = int(plan.trips.num_rows)
        return ReplayProgress(files, plan.files, plan.trips_before(files), total, clock, files == plan.files)


class _Clock:
    """The event clock: starts where the last file before `first` ended, and runs at `speed`."""

    def __init__(self, plan: ReplayPlan, first: int, speed: float | Literal["max"]) -> None:
        self._plan = plan
        self._speed = speed
        self._began = time.monotonic()
        self._base = int(plan.elapsed[first - 1]) if first > 0 else 0

    def wait(self, file: int, stop: threading.Event) -> bool:
        """Sleep until the file is due (False), or for a moment (True: call again). A stop ends it, with False."""
        until = time.monotonic() + _PROGRESS_EVERY
        while not stop.is_set():
            left = self._left(file)
            if left <= 0:
                return False
            if time.monotonic() >= until:
                return True
            time.sleep(min(left, _STEP))
        return False

    def now(self, file: int) -> datetime:
        """Return the event clock while `file` is the next to land."""
        if file >= self._plan.files:
            return self._plan.clock(file - 1)
        if self._speed == "max":
            return self._plan.clock(file)
        return self._plan.clock(file) - timedelta(seconds=max(self._left(file), 0.0) * self._speed)

    def _left(self, file: int) -> float:
        """Return the seconds until the file is due."""
        if self._speed == "max":
            return 0.0
        due = (int(self._plan.elapsed[file]) - self._base) / 1_000_000 / self._speed
        return self._began + due - time.monotonic()


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set, for :meth:`Replay.run`. In the main thread only.

    Nobody may call the event's ``wait()`` in the main thread: a handler that runs in the midst of it and calls
    ``set()`` would wait for a lock that its own thread holds. The replay sleeps in small steps instead.
    """
    stop = threading.Event()

    def handle(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _file_name(state: _State, file: int) -> str:
    return f"trips-{state.first_number + file:06d}.parquet"


def _content(options: ReplayOptions) -> dict[str, Any]:
    """Return the options that say what lands; how fast is another matter."""

    def plain(value: Any) -> Any:
        if isinstance(value, timedelta):
            return format_duration(value)
        return value.isoformat() if isinstance(value, datetime) else value

    return {name: plain(value) for name, value in asdict(options).items() if name != "speed"}


def _compare(found: _State, wanted: _State, where: Path) -> None:
    differences = [
        f"{name} is {value}, was {found.options.get(name)}"
        for name, value in wanted.options.items()
        if value != found.options.get(name)
    ]
    if not differences and wanted.source != found.source:
        differences.append("the trips are others")
    if differences:
        raise StreamwardenError("REPLAY_CONFLICT", f"{where}: {'; '.join(differences)}")
