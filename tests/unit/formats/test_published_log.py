"""The published log over tables that delta-rs writes, without a gate."""

import json
import os
import uuid
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.formats import published_log
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.published_log import NOTHING, PublishedAt, PublishedLog
from streamwarden.formats.range_change import RangeChange
from streamwarden.storage import LocalFiles, LocalStorage
from streamwarden.store.workspace import open_workspace

pytestmark = pytest.mark.unit


class Place:
    """A table, its published log, and the rows that readers of both get."""

    def __init__(self, folder):
        self.workspace = open_workspace("local", root=folder)
        self.root = folder
        self.table = self.workspace.table("t")
        self.log = PublishedLog(self.workspace, "t")

    def write(self, *numbers, **options):
        write_deltalake(self.table, pa.table({"n": list(numbers)}), mode="append", **options)

    def delta(self):
        return DeltaTable(self.table)

    @property
    def latest(self):
        return DeltaLog(self.workspace.files, "t").latest

    def publish(self, **options):
        start, latest = self.log.at(), self.latest
        if start == NOTHING:
            self.log.begin(latest)
        elif start.content < latest:
            audited = DeltaLog(self.workspace.files, "t")
            changes = any(audited.change(number) for number in range(start.content + 1, latest + 1))
            self.log.publish(start, latest, changes=changes, **options)

    def rows(self, version=None):
        return numbers(DeltaTable(self.table, version=version))

    def read(self, version=None):
        return numbers(DeltaTable(self.workspace.table("t", published=True), version=version))

    def streamed(self):
        """Return what a stream with skipChangeCommits reads behind the first version, by Delta's rules."""
        found = []
        for number in self.log.versions()[1:]:
            actions = self.log.read(number)
            if any(one["remove"]["dataChange"] for one in actions if "remove" in one):
                continue
            for one in actions:
                if "add" in one and one["add"]["dataChange"]:
                    path = one["add"]["path"].removeprefix("file://")
                    found += pq.read_table(path)["n"].to_pylist()
        return sorted(found)

    def check(self):
        """Every version that readers can open is whole, and the newest is the table's."""
        for number in self.log.versions():
            content = self.log.content(number)
            assert self.read(number) == self.rows(content), (number, content)
        assert self.read() == self.rows(self.log.at().content)


def numbers(table):
    return sorted(pa.table(table.scan())["n"].to_pylist())


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "root")


def test_a_checkpoint_that_a_killed_removal_left_does_not_begin_the_log(place, monkeypatch):
    for number in range(3):
        place.write(number)
    place.publish()
    place.write(3)
    place.publish()
    # Killed when it had removed the commits.
    for path in (place.root / place.log.folder).glob("*.json"):
        path.unlink()
    monkeypatch.undo()
    assert (place.log.first, place.log.at(), place.log.identity()) == (None, NOTHING, None)
    place.publish()
    assert place.log.first == 3
    assert place.log.identity() == str(place.delta().metadata().id)
    assert [path.name for path in (place.root / place.log.folder).glob("*.checkpoint.parquet")] == [
        f"{3:020d}.checkpoint.parquet"
    ]
    place.write(4)
    place.publish()
    # As an earlier release has left it.
    (place.root / place.log.folder / f"{1:020d}.checkpoint.parquet").write_bytes(b"old")
    assert (place.log.first, place.log.repair()) == (3, [])
    place.check()


def test_a_removal_that_is_killed_anywhere_leaves_a_table_or_none(place, monkeypatch):
    monkeypatch.setattr(published_log, "CHECKPOINT_EVERY", 2)
    real, deleted = LocalFiles.delete, []
    for kill in range(20):
        for number in range(3):
            place.write(number)
            place.publish()

        def delete(files, key, at=kill):
            deleted.append(key)
            if len(deleted) > at:
                raise KeyboardInterrupt
            real(files, key)

        deleted.clear()
        monkeypatch.setattr(LocalFiles, "delete", delete)
        try:
            place.log.remove()
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            monkeypatch.setattr(LocalFiles, "delete", real)
        if place.log.versions():
            place.check()
        place.log.remove()
        place.delta().delete()
    assert kill > 4
    assert not list((place.root / place.log.folder).glob("*"))


def test_appended_rows_of_a_range_with_changes_are_streamed_once(place):
    place.write(1, 2)
    place.publish()
    place.write(3)
    place.delta().delete("n = 1")
    place.write(4, 5)
    place.publish()
    assert place.streamed() == [3, 4, 5]
    assert place.read() == [2, 3, 4, 5]
    # A stream without skipChangeCommits must notice that rows were removed, and a feed must show which.
    changes = [one for one in place.log.read(place.latest) if "remove" in one]
    assert len(changes) == 1 and changes[0]["remove"]["dataChange"]
    place.check()


def test_appended_rows_that_were_compacted_with_published_ones_are_streamed_once(place):
    place.write(1, 2)
    place.write(9)
    place.publish()
    place.write(3)
    place.delta().delete("n = 9")
    place.write(4)
    place.delta().optimize.compact()
    place.write(5)
    place.delta().optimize.compact()
    place.publish()
    assert place.streamed() == [3, 4, 5]
    place.check()
    place.write(6)
    place.publish()
    assert place.streamed() == [3, 4, 5, 6]
    place.check()


def test_new_rows_that_were_corrected_are_streamed_as_corrected(place):
    place.write(1, 2)
    place.publish()
    place.write(300, 3)
    place.delta().update({"n": "4"}, predicate="n = 300")
    place.delta().delete("n = 1")
    place.publish()
    assert place.streamed() == [3, 4]
    place.check()


def test_a_restore_that_undoes_a_compaction_streams_what_was_appended(place):
    place.write(1)
    place.publish()
    place.write(2)
    place.delta().optimize.compact()
    place.delta().restore(1)
    place.publish()
    assert place.streamed() == [2]
    place.check()


STEPS = ["append", "append", "delete old", "correct", "compact", "restore", "publish"]


@given(st.lists(st.sampled_from(STEPS), max_size=12))
@example(["append", "publish", "append", "correct"])
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_readers_get_whole_ranges_and_streams_no_row_twice(tmp_path_factory, steps):
    place = Place(tmp_path_factory.mktemp("log") / "root")
    place.write(1)
    place.write(2)
    place.publish()
    next_row, bad, restored = 10, 10_000, False
    expected, in_range, mixed = set(), set(), False
    bad_published = bad_in_range = False
    for step in [*steps, "publish"]:
        if step == "append":
            place.write(next_row, bad)
            in_range.add(next_row)
            next_row, bad = next_row + 1, bad + 1
            bad_in_range = True
        elif step == "correct":
            place.delta().delete("n >= 10000")
            # One commit that changes an older and an appended file: all that it writes counts as changed.
            mixed = mixed or "compact" in steps or (bad_published and bad_in_range)
            bad_published = bad_in_range = False
        elif step == "delete old":
            place.delta().delete("n = 1")
            mixed = mixed or "compact" in steps
        elif step == "compact":
            place.delta().optimize.compact()
        elif step == "restore":
            before = place.latest - 1
            place.delta().restore(before)
            restored = True
        else:
            place.publish()
            expected |= in_range
            in_range = set()
            bad_published, bad_in_range = bad_published or bad_in_range, False
        assert place.read() == place.rows(place.log.at().content)
    place.check()
    streamed = Counter(row for row in place.streamed() if row < 10_000)
    if not restored:
        assert max(streamed.values(), default=1) == 1
        # Rows that were compacted with older ones and then changed are part of the change.
        assert mixed or set(streamed) == expected


def test_new_rows_that_a_change_wrote_beside_older_ones_are_warned_about(place, caplog):
    place.write(1, 9)
    place.publish()
    place.write(3)
    place.delta().delete("n = 9")
    place.publish()
    assert place.streamed() == [3] and "may miss new rows" not in caplog.text
    place.write(4, 9)
    place.publish()
    place.write(5, 9)
    place.delta().delete("n = 9")
    place.publish()
    assert place.read() == [1, 3, 4, 5] and place.streamed() == [3, 4, 9]
    assert "t: versions 4 to 5: streams of the published table may miss new rows" in caplog.text


def test_a_file_that_gets_a_deletion_vector_stays_what_it_was():
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1}
    change = RangeChange()
    change.commit([{"add": {"path": "f1", "dataChange": True}}])
    change.commit(
        [
            *({"remove": {"path": path, "dataChange": True}} for path in ("f0", "f1")),
            *({"add": {"path": path, "dataChange": True, "deletionVector": vector}} for path in ("f0", "f1")),
        ]
    )
    rows, changes = change.commits(2)
    assert [one["add"]["path"] for one in rows if "add" in one and one["add"]["dataChange"]] == ["f1"]
    assert [one["add"]["path"] for one in changes if "add" in one] == ["f0"]
    assert not change.has_mixed


@pytest.mark.parametrize("kill", range(12))
def test_a_publisher_that_is_killed_at_any_write_shows_whole_ranges_and_goes_on(place, monkeypatch, kill):
    place.write(1, 2)
    place.write(9)
    place.publish()
    for row in (3, 4):
        place.write(row)
        place.write(300)
        place.delta().delete("n = 300")
    place.delta().delete("n = 9")
    place.write(5)
    place.delta().optimize.compact()
    writes = []
    for owner, name in ((LocalStorage, "create"), (LocalFiles, "write")):
        real = getattr(owner, name)

        def dying(self, key, data, _real=real):
            if len(writes) == kill:
                raise KeyboardInterrupt
            writes.append(key)
            return _real(self, key, data)

        monkeypatch.setattr(owner, name, dying)
    died = False
    try:
        place.publish()
    except KeyboardInterrupt:
        died = True
    monkeypatch.undo()
    assert died == (kill < place.latest - 1)
    assert place.read() in ([1, 2, 9], [1, 2, 3, 4, 5])
    place.check()
    # The gate decides about more than before.
    place.write(6)
    place.log.finish(place.log.at())
    place.publish()
    place.check()
    assert place.read() == [1, 2, 3, 4, 5, 6]
    assert place.streamed() == [3, 4, 5, 6]
    assert place.log.versions() == list(range(1, place.latest + 1))


@pytest.mark.parametrize("lost", range(1, 7))
def test_a_lost_commit_of_a_range_with_changes_is_written_again(place, lost):
    place.write(1, 9)
    place.publish()
    place.write(3)
    place.delta().delete("n = 9")
    place.write(4)
    place.delta().optimize.compact()
    place.write(5)
    place.publish()
    place.write(6)
    place.publish()
    place.write(7)
    place.publish()
    path = place.root / place.log.key(lost)
    whole = path.read_bytes()
    path.unlink()
    assert place.log.repair() == [lost]
    assert path.read_bytes() == whole
    place.check()


def test_a_log_gets_a_checkpoint_now_and_then_and_forgets_old_entries(place, monkeypatch):
    monkeypatch.setattr(published_log, "CHECKPOINT_EVERY", 5)
    place.write(0)
    place.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    place.publish()
    folder = place.root / place.log.folder
    for number in range(1, 13):
        place.write(number)
        if number == 8:
            for path in folder.iterdir():
                os.utime(path, (1, 1))
        place.publish()
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 11
    there = place.log.versions()
    # A checkpoint begins what is left, and paths in it are those of the table's files.
    assert there[0] > 1 and there[-1] == 13 and place.log.first == there[0]
    assert place.read() == list(range(13))
    assert place.log.identity() == str(place.delta().metadata().id)
    place.check()
    place.write(13)
    place.publish()
    (folder / f"{there[0]:020d}.json").write_text("{")
    assert place.log.repair() == [there[0]]
    place.check()


def test_a_checkpoint_that_fails_does_not_stop_publishing(place, monkeypatch, caplog):
    monkeypatch.setattr(published_log, "CHECKPOINT_EVERY", 1)
    place.write(0)
    place.publish()
    place.write(1)
    (place.root / place.log.folder / f"{1:020d}.checkpoint.parquet").mkdir()
    place.publish()
    assert "no checkpoint of published version 1" in caplog.text
    assert place.log.at() == PublishedAt(1, 1)


def test_a_root_with_blanks_and_signs_is_read(tmp_path):
    place = Place(tmp_path / "a #1 100% 'root' é")
    place.write(1)
    write_deltalake(place.table, pa.table({"n": [2]}), mode="append")
    place.publish()
    place.write(3)
    place.publish()
    assert place.read() == [1, 2, 3]
    (add,) = [one["add"] for one in place.log.read(2) if "add" in one]
    assert "/a%20%231%20100%25%20'root'%20%C3%A9/tables/t/" in add["path"]


def split_checkpoint(place, *, form):
    """Write the table's newest checkpoint in another form of the protocol, and remove what it replaces."""
    place.delta().create_checkpoint()
    folder = place.root / "tables/t/_delta_log"
    (path,) = folder.glob("*.checkpoint.parquet")
    whole = pq.read_table(path)
    files = [one is not None for one in whole["add"].to_pylist()]
    version = path.name[:20]
    path.unlink()
    if form == "parts":
        half = len(whole) // 2
        pq.write_table(whole.slice(0, half), folder / f"{version}.checkpoint.{1:010d}.{2:010d}.parquet")
        pq.write_table(whole.slice(half), folder / f"{version}.checkpoint.{2:010d}.{2:010d}.parquet")
    else:
        (folder / "_sidecars").mkdir()
        name = f"{uuid.uuid4()}.parquet"
        pq.write_table(whole.filter(pa.array(files)), folder / "_sidecars" / name)
        rest = whole.filter(pa.array([not one for one in files])).to_pylist(maps_as_pydicts="strict")
        lines = [{kind: value for kind, value in row.items() if value is not None} for row in rest]
        lines += [{"checkpointMetadata": {"version": int(version)}}, {"sidecar": {"path": name, "sizeInBytes": 1}}]
        (folder / f"{version}.checkpoint.{uuid.uuid4()}.json").write_text("\n".join(map(json.dumps, lines)))
    (folder / "_last_checkpoint").unlink(missing_ok=True)
    for number in range(int(version) + 1):
        (folder / f"{number:020d}.json").unlink()


@pytest.mark.parametrize("form", ["parts", "sidecars"])
def test_other_forms_of_checkpoints_are_read(place, form):
    for number in range(4):
        place.write(number)
    split_checkpoint(place, form=form)
    write_deltalake_by_hand(place, 4)
    place.log.begin(4)
    assert place.read() == [0, 1, 2, 3, 4]


def test_a_checkpoint_with_a_missing_part_is_not_read(place):
    for number in range(4):
        place.write(number)
    split_checkpoint(place, form="parts")
    next((place.root / "tables/t/_delta_log").glob("*.0000000002.0000000002.parquet")).unlink()
    write_deltalake_by_hand(place, 4)
    with pytest.raises(StreamwardenError, match="GATE_LOG_GONE"):
        place.log.begin(4)


def test_a_missing_sidecar_is_named(place):
    for number in range(4):
        place.write(number)
    split_checkpoint(place, form="sidecars")
    write_deltalake_by_hand(place, 4)
    next((place.root / "tables/t/_delta_log/_sidecars").iterdir()).unlink()
    with pytest.raises(StreamwardenError, match=r"TABLE_DAMAGED.*_sidecars"):
        place.log.begin(4)


def write_deltalake_by_hand(place, number):
    """Append a row as any writer would, without reading the log."""
    path = place.root / "tables/t/by-hand.parquet"
    pq.write_table(pa.table({"n": [number]}), path)
    add = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}, "modificationTime": 0}
    actions = [{"commitInfo": {"timestamp": 0}}, {"add": {**add, "dataChange": True}}]
    log = place.root / f"tables/t/_delta_log/{number:020d}.json"
    log.write_text("\n".join(map(json.dumps, actions)))


def test_a_checkpoint_keeps_columns_and_tags_whose_names_end_like_typed_statistics(place):
    write_deltalake(
        place.table,
        pa.table({"n": [1], "day_parsed": ["x"], "empty": pa.array([None], pa.string())}),
        partition_by=["day_parsed", "empty"],
    )
    place.delta().alter.set_table_properties({"own_parsed": "kept"}, raise_if_not_exists=False)
    place.delta().create_checkpoint()
    place.publish()
    found = DeltaTable(place.workspace.table("t", published=True))
    assert found.metadata().configuration["own_parsed"] == "kept"
    assert pa.table(found.scan()).select(["day_parsed", "empty", "n"]).to_pylist() == [
        {"day_parsed": "x", "empty": None, "n": 1}
    ]


def test_paths_that_are_absolute_already_stay_so(place):
    """As a shallow clone has them, whose later deletion vectors are its own."""
    from streamwarden.formats.absolute_paths import absolute_uri, with_absolute_paths

    base = absolute_uri("file:/a b/t")
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 4, "cardinality": 1}
    for given_path, wanted in (
        ("x%20y.parquet", "file:///a%20b/t/x%20y.parquet"),
        ("file:/other/x.parquet", "file:///other/x.parquet"),
        ("file:///other/x.parquet", "file:///other/x.parquet"),
        ("s3a://bucket/x.parquet", "s3a://bucket/x.parquet"),
    ):
        found = with_absolute_paths({"add": {"path": given_path, "deletionVector": vector}}, base)["add"]
        assert found["path"] == wanted
        assert found["deletionVector"]["storageType"] == "p"
        # The example of the Delta protocol.
        assert found["deletionVector"]["pathOrInlineDv"] == (
            "file:///a%20b/t/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
        )
    assert absolute_uri("s3a://bucket/some place") == "s3a://bucket/some%20place"
