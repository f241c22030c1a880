"""Replay trips into a landing folder like a collector: file by file, by the trips' own clock, some of them late.

Every trip lands exactly once, also if the replay is stopped or killed and restarted. Before a file lands, a state
document records that it is prepared; one rename then moves it from its prepared place. So after a crash, a prepared
file has not landed, and a missing one has, whatever a consumer did with it since.
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

# Short, so that a stop acts at once. A sleep and not a wait: see stop_on_signals().
_STEP = 0.05
_PROGRESS_EVERY = 0.5


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay.

    Parameters
    ----------
    speed
        Event seconds a second, or ``"max"``: as fast as files can be written. Default 600: a day of trips in 2.4
        minutes. May change at each start; all other options are fixed once the replay has begun.
    late_share
        The share of late trips. The others arrive at their start. Default 0.05.
    late_min, late_max
        Delays of late trips, uniformly distributed. If files are read in order, a watermark of `late_max` drops none.
        Default 5 minutes to 2 hours.
    file_every
        Event time of one file; it lands when that has passed. Default 15 minutes. Periods without trips have no file.
    start, end
        Omit trips before `start` and from `end` on, by pickup; a trip without a plausible pickup follows its neighbours
        in the source. Without time zone, like the trips. None omits nothing.
    seed
        Selects the late trips and their delays. A trip has the same delay in every replay.
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

        # NaN is neither above nor below any number, so it fails these checks too.
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
    """Progress of a replay.

    Parameters
    ----------
    files, total_files
        Landed files, by this and earlier runs of the same replay, and all files.
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
    """Content of ``.replay/state.json``. Files before `prepared` have landed; `prepared` too if it's not hidden."""

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

    Does not check or drop trips, and does not track consumers of the files. A folder can have one replay at a time.

    Parameters
    ----------
    trips
        From :func:`~nyc_taxi.trips.tlc.read_tlc` or :func:`~nyc_taxi.trips.generator.generate`. Column types are kept;
        ``card_id`` is added.
    landing
        A local folder, created when needed. Files are named ``trips-000000.parquet`` and so on.
    options
        See :class:`ReplayOptions`.
    restart
        Land everything again under new names, also with other options. By default an earlier replay of the same trips
        resumes.
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
        """The replay's plan. ``plan.trips`` holds exactly the trips of all files, for comparisons."""
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
            Called at the start, after each file, and twice a second during waits for the clock.
        stop
            When set, the run ends within a tenth of a second; see :func:`stop_on_signals`. A file that is not due by
            the event clock does not land: the next run begins with it.

        Raises
        ------
        StreamwardenError
            ``REPLAY_CONFLICT``: the folder holds another replay. ``REPLAY_RUNNING``: another replay uses it.
            ``REPLAY_SOURCE_INVALID``: there is nothing to replay. ``DOCUMENT_INVALID``: the state can't be read.
        """
        report = on_progress or (lambda _: None)
        stop = stop or threading.Event()
        plan = self.plan
        with self._folder.exclusive():
            state = self._begin()
            # A second run of this object continues.
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
                    # In this order: a file that the state calls prepared must be complete.
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
        """Return the state to continue from; writes it if it is new."""
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
        # Also beyond landed files that were removed: Spark remembers names, and ignores known ones.
        known = [number + 1 for number in numbers]
        if found is not None:
            known.append(found.first_number + found.files)
        fresh = replace(fresh, first_number=max(known, default=0))
        # State first: an old state without a prepared file would mean that the file has landed.
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
    """The event clock: starts at the end of the last file before `first`, and runs at `speed`."""

    def __init__(self, plan: ReplayPlan, first: int, speed: float | Literal["max"]) -> None:
        self._plan = plan
        self._speed = speed
        self._began = time.monotonic()
        self._base = int(plan.elapsed[first - 1]) if first > 0 else 0

    def wait(self, file: int, stop: threading.Event) -> bool:
        """Sleep until the file is due (False), or briefly (True: call again). A stop ends the sleep, with False."""
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
    """Yield an event that SIGTERM and SIGINT set, for :meth:`Replay.run`. In the main thread only.

    Do not call the event's ``wait()`` in the main thread: if a signal's handler interrupts it, ``set()`` waits for a
    lock that its own thread holds. So the replay sleeps in small steps.
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
    """Return the options that decide what lands, without the speed."""

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
