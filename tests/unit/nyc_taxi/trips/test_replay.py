import json
import threading
import time
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.landing import LandingFolder
from nyc_taxi.trips.replay import Replay, ReplayOptions

from streamwarden.errors import StreamwardenError
from streamwarden.storage import LocalStorage

pytestmark = pytest.mark.unit

AT_ONCE = ReplayOptions(speed="max")
DAY = generate(GeneratorOptions(end=datetime(2023, 3, 7), trips=400))
NOON = datetime(2023, 3, 6, 12)


def landed(folder) -> list:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def rows(tables) -> Counter:
    # As text: NaN and nulls compare.
    return Counter(str(row) for table in tables for row in table.to_pylist())


def read(folder) -> Counter:
    return rows(pq.ParquetFile(path).read() for path in landed(folder))


def test_everything_lands_once_in_ascending_files(tmp_path):
    seen = []
    replay = Replay(DAY, tmp_path / "landing", AT_ONCE)
    end = replay.run(seen.append)
    files = landed(tmp_path / "landing")
    assert [path.name for path in files] == [f"trips-{number:06d}.parquet" for number in range(replay.plan.files)]
    assert read(tmp_path / "landing") == rows([replay.plan.trips])
    # Spark takes files by modification time in whole milliseconds.
    times = [path.stat().st_mtime_ns // 1_000_000 for path in files]
    assert all(earlier < later for earlier, later in pairwise(times))
    assert end == seen[-1] and end.done and end.trips == end.total_trips == DAY.num_rows
    assert [progress.files for progress in seen] == list(range(end.total_files + 1))
    assert all(one.clock <= other.clock for one, other in pairwise(seen))
    assert seen[0].trips == 0 and not seen[0].done


def test_the_same_trips_and_options_give_the_same_files(tmp_path):
    for name in ("one", "other"):
        Replay(DAY, tmp_path / name, AT_ONCE).run()
    one, other = ({path.name: path.read_bytes() for path in landed(tmp_path / name)} for name in ("one", "other"))
    assert one == other


def test_both_schemas_keep_their_types(tmp_path):
    for schema in ("2023", "2025"):
        trips = generate(GeneratorOptions(trips=50, schema=schema))
        Replay(trips, tmp_path / schema, AT_ONCE).run()
        for path in landed(tmp_path / schema):
            assert pq.read_schema(path).equals(trips.schema.append(pa.field("card_id", pa.string())))


def test_a_listing_consumer_never_sees_a_partial_file(tmp_path):
    """It reads whatever a listing shows, at once, and deletes it: the trips it got are all trips, once."""
    trips = generate(GeneratorOptions(trips=3000))
    replay = Replay(trips, tmp_path, AT_ONCE)
    over, got, failures = threading.Event(), [], []

    def consume():
        while True:
            last = over.is_set()
            for path in landed(tmp_path):
                try:
                    got.append(pq.ParquetFile(path).read())
                except Exception as error:
                    failures.append(error)
                path.unlink()
            if last:
                return

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        replay.run()
    finally:
        over.set()
        consumer.join()
    assert not failures
    assert rows(got) == rows([replay.plan.trips])


def test_stop_and_resume(tmp_path):
    stop = threading.Event()
    first = Replay(DAY, tmp_path, AT_ONCE).run(lambda progress: progress.files == 5 and stop.set(), stop)
    assert first.files == 5 == len(landed(tmp_path)) and not first.done
    assert first.trips == sum(pq.read_metadata(path).num_rows for path in landed(tmp_path))
    # A consumer took them; speed may change.
    taken = [pq.ParquetFile(path).read() for path in landed(tmp_path)]
    for path in landed(tmp_path):
        path.unlink()
    seen = []
    replay = Replay(DAY, tmp_path, ReplayOptions(speed=1e9))
    assert replay.run(seen.append).done
    assert seen[0].files == 5
    assert rows(taken) + read(tmp_path) == rows([replay.plan.trips])
    # Nothing is left to do, again and again.
    before = landed(tmp_path)
    assert replay.run().done
    assert landed(tmp_path) == before


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["prepare", "write", "land"])
@pytest.mark.parametrize("consumed", [False, True], ids=["kept", "consumed"])
def test_a_crash_at_any_step_repeats_and_loses_nothing(tmp_path, monkeypatch, make_trips, step, after, consumed):
    """Each call of a step fails once, right before or right after its effect; the next run goes on from there."""
    trips = make_trips([NOON + 15 * number * timedelta(minutes=1) for number in range(4)])
    owner = LocalStorage if step == "write" else LandingFolder
    original = getattr(owner, step)
    countdown = 0

    def crashing(*arguments):
        nonlocal countdown
        countdown -= 1
        if countdown == 0 and not after:
            raise Crash
        original(*arguments)
        if countdown == 0:
            raise Crash

    monkeypatch.setattr(owner, step, crashing)
    crashes = 0
    while True:
        landing = tmp_path / str(crashes)
        countdown = crashes + 1
        try:
            Replay(trips, landing, AT_ONCE).run()
            break
        except Crash:
            crashes += 1
        got = [pq.ParquetFile(path).read() for path in landed(landing)] if consumed else []
        for path in landed(landing) if consumed else []:
            path.unlink()
        replay = Replay(trips, landing, AT_ONCE)
        assert replay.run().done
        assert rows(got) + read(landing) == rows([replay.plan.trips])
    # One state more than files: the one that begins the replay.
    assert crashes == 4 + (step == "write")


def test_a_half_written_file_is_written_anew(tmp_path, make_trips):
    trips = make_trips([NOON])
    hidden = tmp_path / ".replay" / ".trips-000000.parquet"
    hidden.parent.mkdir()
    hidden.write_bytes(b"PAR1 and no more")
    replay = Replay(trips, tmp_path, AT_ONCE)
    replay.run()
    assert read(tmp_path) == rows([replay.plan.trips])


def test_speed(tmp_path, make_trips):
    """Five files of a quarter of an hour each, at a quarter of an hour in a fifth of a second."""
    trips = make_trips([NOON + 15 * number * timedelta(minutes=1) for number in range(5)])
    times = []
    began = time.monotonic()
    options = ReplayOptions(speed=15 * 60 / 0.2, late_share=0)
    Replay(trips, tmp_path, options).run(lambda progress: times.append(time.monotonic() - began))
    # At the earliest; a loaded machine may be late.
    assert all(time_ >= 0.2 * number for number, time_ in enumerate(times))
    assert times[-1] < 30


def test_a_stop_acts_at_once_and_the_clock_moves_meanwhile(tmp_path, make_trips):
    stop, seen, stopped_at = threading.Event(), [], []

    def see(progress):
        seen.append(progress)
        if len(seen) == 3:
            stop.set()
            stopped_at.append(time.monotonic())

    # A minute, if nobody stops it.
    end = Replay(make_trips([NOON]), tmp_path, ReplayOptions(speed=15, late_share=0)).run(see, stop)
    assert time.monotonic() - stopped_at[0] < 30
    assert end.files == 0 and not landed(tmp_path)
    assert len(seen) >= 3 and seen[0].clock < seen[1].clock < seen[2].clock
    assert NOON <= seen[0].clock < NOON + timedelta(minutes=1)
    # What was prepared in vain lands at the next run.
    assert Replay(make_trips([NOON]), tmp_path, ReplayOptions(speed="max", late_share=0)).run().done
    assert len(landed(tmp_path)) == 1


@pytest.mark.parametrize(
    ("trips", "options", "says"),
    [
        (DAY, ReplayOptions(late_share=0.1), "late_share is 0.1, was 0.05"),
        (DAY, ReplayOptions(late_max=timedelta(hours=3)), "late_max is 3h, was 2h"),
        (DAY, ReplayOptions(start=datetime(2023, 3, 6, 1)), "start is 2023-03-06T01:00:00, was None"),
        (DAY.slice(1), ReplayOptions(), "the trips are others"),
    ],
)
def test_another_replay_in_the_same_folder_is_refused(tmp_path, trips, options, says):
    Replay(DAY, tmp_path, AT_ONCE).run()
    before = landed(tmp_path)
    with pytest.raises(StreamwardenError, match="REPLAY_CONFLICT") as error:
        Replay(trips, tmp_path, options).run()
    assert says in error.value.what
    assert landed(tmp_path) == before


def test_restart_lands_all_again_under_new_names(tmp_path):
    stop = threading.Event()
    replay = Replay(DAY, tmp_path, AT_ONCE)
    replay.run(lambda progress: progress.files == 3 and stop.set(), stop)
    for path in landed(tmp_path):
        path.unlink()
    again = Replay(DAY, tmp_path, ReplayOptions(speed="max", late_share=0.5), restart=True)
    assert again.run().done
    names = [path.name for path in landed(tmp_path)]
    # Beyond all that the first one could have used.
    assert names[0] == f"trips-{replay.plan.files:06d}.parquet" and len(names) == again.plan.files
    assert read(tmp_path) == rows([again.plan.trips])
    assert again.run().done
    assert [path.name for path in landed(tmp_path)] == names


def test_files_without_a_state_are_not_written_over(tmp_path, make_trips):
    Replay(DAY, tmp_path, AT_ONCE).run()
    before = {path: path.read_bytes() for path in landed(tmp_path)}
    (tmp_path / ".replay" / "state.json").unlink()
    with pytest.raises(StreamwardenError, match="REPLAY_CONFLICT"):
        Replay(DAY, tmp_path, AT_ONCE).run()
    Replay(make_trips([NOON]), tmp_path, AT_ONCE, restart=True).run()
    assert len(landed(tmp_path)) == len(before) + 1
    assert all(path.read_bytes() == data for path, data in before.items())


def test_one_replay_a_folder(tmp_path):
    failures = []

    def second(progress):
        if progress.files == 2:
            try:
                Replay(DAY, tmp_path, AT_ONCE).run()
            except StreamwardenError as error:
                failures.append(error)

    assert Replay(DAY, tmp_path, AT_ONCE).run(second).done
    assert [error.code for error in failures] == ["REPLAY_RUNNING"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', json.dumps({"prepared": 1, "unknown": 2})])
def test_an_unreadable_state(tmp_path, text):
    (tmp_path / ".replay").mkdir()
    (tmp_path / ".replay" / "state.json").write_text(text)
    with pytest.raises(StreamwardenError, match="DOCUMENT_INVALID"):
        Replay(DAY, tmp_path, AT_ONCE).run()


def test_a_state_of_a_later_version(tmp_path):
    Replay(DAY, tmp_path, AT_ONCE).run()
    path = tmp_path / ".replay" / "state.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(StreamwardenError, match="version 2"):
        Replay(DAY, tmp_path, AT_ONCE).run()


@pytest.mark.parametrize(
    "options",
    [
        {"speed": 0},
        {"speed": -1.0},
        {"speed": float("nan")},
        {"speed": float("inf")},
        {"late_share": 1.5},
        {"late_share": float("nan")},
        {"late_min": timedelta(minutes=-1)},
        {"late_min": timedelta(hours=3)},
        {"file_every": timedelta(0)},
        {"start": NOON, "end": NOON},
        {"end": datetime.fromisoformat("2023-03-06T00:00:00+00:00")},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(StreamwardenError, match="REPLAY_OPTIONS_INVALID"):
        ReplayOptions(**options)
