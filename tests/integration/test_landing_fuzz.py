"""Files of any name, age, size, format and order, and drivers that are killed at any moment: nothing lost or doubled.

Each sequence lands files drawn by hypothesis and sometimes kills a driver. Then it compares three tables with the
files. Each good row is once in `trips`. Each bad row or file is once in the quarantine. Each trip is once in its window
of `zone_windows`, which reads `trips` with a watermark. STREAMWARDEN_TEST_SEQUENCES is the number of sequences; they
follow each other in one place, as in a week of operation.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.landing.file import LandedFile, shown
from streamwarden.landing.inspect import FileState, ask_reread, landed_files
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.processes import kill
from streamwarden.supervision.observe import observe
from tests.integration.conftest import BY, Place

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(7200)]

_KILLED = ("DRIVER_KILLED", "DRIVER_DIED", "DRIVER_DID_NOT_START")
"""What a driver that this test has killed ends with, the last before its first heartbeat."""

SEQUENCES = int(os.environ.get("STREAMWARDEN_TEST_SEQUENCES", "5"))
START = datetime(2024, 1, 1, tzinfo=UTC)
# A sequence has at most 240 trips, which are 80 minutes. So a file that is read again is not late for a watermark of
# two hours. A hundred sequences are half a day, so that most windows are final at the end.
APART = timedelta(seconds=20)
WATERMARK = "2h"
INGEST, READER = JOBS = ("ingest_trips", "zone_windows")
FIELDS = ("fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount", "total_amount")

Format = Literal["parquet", "csv", "csv.gz", "jsonl"]
Damage = Literal["none", "cut", "foreign", "empty", "large", "no amount"]


@dataclass(frozen=True)
class Drawn:
    """A file to land: its name's beginning, its rows (true: good), how many of another file's it repeats, and how."""

    name: bytes
    format: Format
    damage: Damage
    rows: Sequence[bool]
    repeats: int
    age_s: int
    how: Literal["renamed", "written", "slowly"]
    pause_s: float
    replaced: bool


NAMES = (
    st.binary(min_size=1, max_size=24)
    .filter(lambda name: not set(name) & {0, ord("/")} and name[:1] not in (b".", b"_") and name not in (b".", b".."))
    .flatmap(lambda name: st.sampled_from([name, b"[1]" + name, name + b"*?", b"{" + name, b"10:00 " + name, b"%20#1"]))
)
FILES = st.builds(
    Drawn,
    name=NAMES,
    format=st.sampled_from(["parquet", "parquet", "csv", "csv.gz", "jsonl"]),
    damage=st.sampled_from(["none"] * 7 + ["cut", "foreign", "empty", "large", "no amount"]),
    rows=st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=30),
    repeats=st.integers(0, 3),
    age_s=st.sampled_from([0, 0, 60, 86_400, 40 * 86_400, 50 * 365 * 86_400, -86_400, -40 * 365 * 86_400]),
    how=st.sampled_from(["renamed", "written", "slowly"]),
    pause_s=st.sampled_from([0.0, 0.0, 0.1, 0.6]),
    replaced=st.sampled_from([False] * 7 + [True]),
)
SEQUENCE = st.tuples(
    st.lists(FILES, min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 12), st.sampled_from(JOBS)), max_size=2),
)


@dataclass
class Landings:
    """What landed until now, and what the tables must hold of it."""

    place: Place
    number: int = 0
    names: set[str] = field(default_factory=set)
    trips: dict[datetime, int] = field(default_factory=dict)
    """The zone by pickup, which no two trips share."""
    bad_rows: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    deploying: threading.Lock = field(default_factory=threading.Lock)
    kills: int = 0
    rereads: int = 0

    @property
    def folder(self) -> Path:
        return self.place.workspace.root / "landing"

    def land(self, drawn: Drawn) -> None:
        name = os.fsdecode(drawn.name) + f".{drawn.format}"
        while name in self.names:
            name = f"{len(self.names)} {name}"
        self.names.add(name)
        self._land(name, drawn, reading=1)

    def replace(self, drawn: Drawn, name: str) -> None:
        """Publish a file again under its name, longer than before, as the TLC corrects its months."""
        self.mend_halves()
        again = Drawn(**{**vars(drawn), "rows": [*drawn.rows, True, False], "damage": "none"})
        reading = next(one.reading for one in self._landed() if one.name == shown(name))
        self._land(name, again, reading=reading + 1)
        self._reread([shown(name)])

    def _land(self, name: str, drawn: Drawn, *, reading: int) -> None:
        rows, good = self._rows(drawn)
        data = _file(rows, drawn)
        label = LandedFile(name, "", 0, 0, reading).label
        if drawn.damage in ("none",) or (drawn.damage == "large" and len(data) <= 64 * 1024):
            for number, (row, is_good) in enumerate(zip(rows, good, strict=True)):
                if is_good:
                    self.trips[row["lpep_pickup_datetime"]] = row["PULocationID"]
                else:
                    self.bad_rows[label, number] = 1
        elif drawn.damage == "cut" and drawn.format in ("csv", "jsonl"):
            pytest.fail("text that is cut is another text: not drawn")
        else:
            self.bad_rows[label, None] = 1
            self.refused.add(shown(name))
        path = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f".{self.number}" if drawn.how == "renamed" else path
        with target.open("wb") as stream:
            half = len(data) // 2
            stream.write(data[:half])
            if drawn.how == "slowly":
                stream.flush()
                time.sleep(0.2)
            stream.write(data[half:])
        if drawn.age_s:
            at = time.time() - drawn.age_s
            os.utime(target, (at, at))
        target.rename(path)

    def _rows(self, drawn: Drawn) -> tuple[list[dict[str, Any]], list[bool]]:
        rows, good = [], list(drawn.rows)
        for is_good in drawn.rows:
            self.number += 1
            rows.append(_trip(self.number, is_good))
        known = sorted(self.trips)[: drawn.repeats]
        for pickup in known:
            rows.append(_trip(round((pickup - START) / APART), True))
            good.append(True)
        return rows, good

    def kill_after(self, kills: Sequence[tuple[float, str]]) -> None:
        for wait_s, job in kills:
            time.sleep(wait_s)
            self._kill(job)

    def _kill(self, job: str) -> None:
        documents = self.place.documents(job)
        seen, lease = observe(self.place.workspace, job), documents.lease.read()
        launch = documents.launch(seen.incarnation).read() if seen.incarnation else None
        for process in (launch.process if launch else None, lease.jvm if lease else None):
            if process is not None:
                self.kills += kill(process)
        with self.deploying:
            deploy_job(self.place.workspace, job, by=BY)

    def _landed(self) -> list[Any]:
        return landed_files(self.place.workspace, self.place.workspace.job(INGEST))

    def _reread(self, names: Sequence[str]) -> None:
        ask_reread(self.place.workspace, self.place.workspace.job(INGEST), names, by=BY)
        self.rereads += len(names)
        deadline = time.monotonic() + 120
        while self.place.workspace.storage.list("control/ingest_trips/rereads"):
            assert time.monotonic() < deadline, "nobody planned what is to be read again"
            self._see_alive(INGEST)
            time.sleep(0.2)
        self._wait_until_read()

    def _see_alive(self, job: str) -> None:
        seen = observe(self.place.workspace, job)
        # By this test, and before its supervisor has heard of it.
        assert seen.error is None or seen.error.code in _KILLED, seen.error
        with self.deploying:
            if not observe(self.place.workspace, job).phase.alive:
                deploy_job(self.place.workspace, job, by=BY)

    def _wait_until_read(self) -> None:
        deadline = time.monotonic() + 300
        open_states = (FileState.NEW, FileState.WAITING)
        while True:
            left = [one for one in self._landed() if one.state in open_states]
            reference = self.place.documents(INGEST).checkpoint.read()
            if not left and reference is not None:
                reader = CheckpointReader(self.place.workspace.storage, reference.path)
                if reader.last_offset() == reader.last_commit():
                    return
            assert time.monotonic() < deadline, left
            self._see_alive(INGEST)
            time.sleep(0.3)

    def mend_halves(self) -> None:
        """Have files read again that were read while they were written: told, and quarantined whole."""
        self._wait_until_read()
        halves = [
            one for one in self._landed()
            if one.state is FileState.REPLACED or (one.state is FileState.QUARANTINED and one.name not in self.refused)
        ]  # fmt: skip
        if halves:
            for one in halves:
                self._move_expectations(one.name, one.reading)
            self._reread([one.name for one in halves])

    def compare(self) -> None:
        self.mend_halves()
        trips = Counter(row["lpep_pickup_datetime"] for row in self.place.rows("trips")) if self.trips else Counter()
        quarantine = Counter((row["source_file"], row["source_row"]) for row in self.place.rows("trips_quarantine"))
        assert trips == Counter(list(self.trips))
        assert quarantine == self.bad_rows
        if self.trips:
            self._compare_windows()

    def _compare_windows(self) -> None:
        expected = Counter((pickup.replace(minute=0, second=0), zone) for pickup, zone in self.trips.items())
        deadline = time.monotonic() + 120
        while (windows := self._windows()) != expected:
            assert time.monotonic() < deadline, (windows - expected, expected - windows)
            self._see_alive(READER)
            time.sleep(0.5)

    def _windows(self) -> Counter[tuple[datetime, int]]:
        if not self.place.workspace.storage.list(f"tables/{READER}/_delta_log"):
            return Counter()
        found: Counter[tuple[datetime, int]] = Counter()
        for row in self.place.rows(READER):
            # Summed: a window that is there twice shows.
            found[row["window_start"], row["zone_id"]] += row["trips"]
        return found

    def _move_expectations(self, name: str, reading: int) -> None:
        raw = next(raw for raw in self.names if shown(raw) == name)
        before, after = (LandedFile(raw, "", 0, 0, number).label for number in (reading, reading + 1))
        for label, number in [key for key in self.bad_rows if key[0] == before]:
            del self.bad_rows[label, number]
            self.bad_rows[after, number] = 1
        self.bad_rows[before, None] = 1


def _trip(number: int, good: bool) -> dict[str, Any]:
    pickup = START + number * APART
    return {
        "VendorID": 2,
        "lpep_pickup_datetime": pickup,
        "lpep_dropoff_datetime": pickup + timedelta(minutes=9 if good else -9),
        "PULocationID": number % 265 + 1,
        "DOLocationID": 7,
        **dict.fromkeys(FIELDS, 1.5),
    }


def _file(rows: list[dict[str, Any]], drawn: Drawn) -> bytes:
    if drawn.damage == "empty":
        return b""
    if drawn.damage == "foreign":
        return b"PK\x03\x04" + os.urandom(50)
    if drawn.damage == "no amount":
        rows = [{("Total" if name == "total_amount" else name): value for name, value in row.items()} for row in rows]
    stream = io.BytesIO()
    if drawn.format == "parquet":
        table = pa.Table.from_pylist(rows)
        if drawn.damage == "large":
            table = table.append_column("note", pa.array([os.urandom(70 * 1024).hex()] * len(rows)))
        pq.write_table(table, stream, use_dictionary=False, compression="none")
    elif drawn.format == "jsonl":
        for row in rows:
            stream.write(json.dumps(row, default=lambda moment: f"{moment:%Y-%m-%dT%H:%M:%SZ}").encode() + b"\n")
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        for row in rows:
            plain = {name: f"{value:%Y-%m-%d %H:%M:%S}" for name, value in row.items() if isinstance(value, datetime)}
            writer.writerow({**row, **plain})
        data = text.getvalue().encode()
        stream.write(gzip.compress(data) if drawn.format == "csv.gz" else data)
    data = stream.getvalue()
    if drawn.damage == "large" and drawn.format != "parquet":
        data += b"\n" * (64 * 1024 + 1)
    return data[: len(data) * 2 // 3] if drawn.damage == "cut" else data


def _is_meant(drawn: Drawn) -> bool:
    # A text that is cut at a third is another, good text up to there.
    return not (drawn.damage == "cut" and drawn.format in ("csv", "jsonl"))


@pytest.fixture
def landings(place: Place) -> Iterator[Landings]:
    place.job(
        INGEST,
        source={"kind": "files", "path": "landing", "max_files_per_batch": 3, "max_file_size": "64k"},
        options={"earliest": "2023-01-01T00:00:00", "latest": "2026-01-01T00:00:00"},
        restarts={"max": 1000},
    )
    place.job(READER, watermark=WATERMARK, restarts={"max": 1000})
    place.workspace.root.joinpath("landing").mkdir(parents=True)
    deploy_job(place.workspace, INGEST, by=BY)
    deploy_job(place.workspace, READER, by=BY)
    yield Landings(place)


@pytest.mark.long
@pytest.mark.parametrize("sequences", [pytest.param(SEQUENCES, id=f"{SEQUENCES}")])
def test_nothing_is_lost_or_doubled(landings: Landings, sequences: int) -> None:
    done = 0

    @seed(int(os.environ.get("STREAMWARDEN_TEST_SEED", "26")))
    @settings(
        max_examples=sequences,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SEQUENCE)
    def run(sequence: tuple[list[Drawn], list[float]]) -> None:
        nonlocal done
        files, kills = sequence
        began = time.monotonic()
        killer = threading.Thread(target=landings.kill_after, args=(kills,))
        killer.start()
        for drawn in filter(_is_meant, files):
            landings.land(drawn)
            if drawn.replaced and drawn.damage == "none":
                landings.replace(drawn, max(landings.names, key=lambda name: (landings.folder / name).stat().st_ctime))
            time.sleep(drawn.pause_s)
        killer.join()
        landings.compare()
        done += 1
        sys.stdout.write(
            f"sequence {done}: {len(files)} files, {len(kills)} kills, {time.monotonic() - began:.1f} s; in all"
            f" {len(landings.names)} files, {len(landings.trips)} trips, {landings.bad_rows.total()} quarantined,"
            f" {landings.kills} processes killed, {landings.rereads} read again\n"
        )
        sys.stdout.flush()

    run()
    assert done >= sequences
