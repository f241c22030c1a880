from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import BatchOffsets, CheckpointReader
from streamwarden.formats.checkpoint_files import Closure, StateFileMissing, closure, relocated, repartitioned
from streamwarden.storage import LocalFiles, LocalStorage

pytestmark = pytest.mark.unit

CHECKPOINT = "checkpoints/job/g000001"
JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
FORMAT_2 = "_b0a1c2d3-0000-4000-8000-0123456789ab"


class Made:
    """A checkpoint as Spark would have written it."""

    def __init__(self, root: Path, *, batches: int = 0, sources: Iterable[str] = ("{}",)) -> None:
        self.root = root
        self.folder = root / CHECKPOINT
        self.write("metadata", '{"id":"x"}')
        for batch in range(batches):
            self.batch(batch, sources)

    def write(self, path: str, data: str | bytes = "x") -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data if isinstance(data, bytes) else data.encode())

    def batch(self, number: int, sources: Iterable[str] = ("{}",), conf: dict[str, str] | None = None) -> None:
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf or {}}), *sources]
        self.write(f"offsets/{number}", "\n".join(lines))
        self.write(f"commits/{number}", "v1\n{}")

    def operator(
        self,
        number: int = 0,
        *,
        stores: Iterable[str] = ("default",),
        partitions: int = 1,
        version: int = 1,
        written_by: int = 0,
        name: str = "stateStoreSave",
    ) -> None:
        described: dict[str, Any] = {"operatorInfo": {"operatorId": number, "operatorName": name}, "stateStoreInfo": []}
        for store in stores:
            one: dict[str, Any] = {"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions}
            if version == 2:
                schema = f"_stateSchema/{store}/0_schema"
                one["stateSchemaFilePaths"] = [f"file:{self.folder}/state/{number}/{schema}"]
                self.write(f"state/{number}/{schema}", utf("v3", f"schema of {store}"))
            described["stateStoreInfo"].append(one)
        path = "metadata" if version == 1 else f"v2/{written_by}"
        self.write(f"state/{number}/_metadata/{path}", f"v{version}\n{json.dumps(described)}")

    def snapshot(self, folder: str, version: int, tables: Iterable[str] = (), logs: Iterable[str] = ()) -> None:
        """Write a RocksDB snapshot, and those of its tables that are not there yet."""
        described = {
            "sstFiles": [
                {"localFileName": f"{name}.sst", "dfsSstFileName": f"{name}-uuid.sst", "fileSize": 1} for name in tables
            ],
            "logFiles": [{"localFileName": f"{name}.log", "dfsLogFileName": f"{name}-uuid.log"} for name in logs],
            "numKeys": 1,
        }
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("metadata", f"v1\n{json.dumps(described)}")
            archive.writestr("OPTIONS-000007", "")
        self.write(f"{folder}/{version}.zip", content.getvalue())
        for name in tables:
            self.write(f"{folder}/SSTs/{name}-uuid.sst")
        for name in logs:
            self.write(f"{folder}/logs/{name}-uuid.log")

    def changes(self, folder: str, versions: Iterable[int], kind: str = "changelog") -> None:
        for version in versions:
            self.write(f"{folder}/{version}.{kind}")

    def remove(self, *paths: str) -> None:
        for path in paths:
            (self.folder / path).unlink()

    def closure(self, batch: int) -> Closure:
        offsets = CheckpointReader(LocalStorage(self.root), CHECKPOINT).offsets(batch)
        return closure(LocalFiles(self.root), CHECKPOINT, offsets or BatchOffsets(batch, 0))

    def state(self, batch: int) -> set[str]:
        """Return the state's files that a batch needs, without what describes it."""
        return {path for path in self.closure(batch).files if path.startswith("state/") and "/_" not in path}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    found = Made(tmp_path, batches=6)
    found.operator()
    return found


def utf(*texts: str) -> bytes:
    """Return strings as Java's DataOutput.writeUTF writes them."""
    return b"".join(len(text).to_bytes(2) + text.encode() for text in texts)


def _under(folder: str, *names: str) -> set[str]:
    return {f"{folder}/{name}" for name in names}


# -- logs and sources --------------------------------------------------------------------------------------------------


def test_a_stateless_query_needs_its_logs_up_to_the_batch(tmp_path: Path) -> None:
    found = Made(tmp_path, batches=3).closure(1)
    assert set(found.files) == {"metadata", "offsets/0", "offsets/1", "commits/0", "commits/1"}
    assert found.operators == [] and found.metadata == []
    assert found.files["metadata"] == len('{"id":"x"}')


def test_purged_logs_are_not_missed(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=3)
    made.remove("offsets/0", "commits/0")
    assert set(made.closure(2).files) == {"metadata", "offsets/1", "offsets/2", "commits/1", "commits/2"}


@pytest.mark.parametrize("path", ["metadata", "offsets/2", "commits/2"])
def test_a_missing_log_entry_is_named(tmp_path: Path, path: str) -> None:
    made = Made(tmp_path, batches=3)
    made.remove(path)
    with pytest.raises(StateFileMissing, match=f"^{path}$"):
        made.closure(2)


def test_checksums_and_unfinished_files_are_left_out(made: Made) -> None:
    made.changes("state/0/0", range(1, 7))
    for path in (".metadata.crc", "offsets/.1.crc", "state/0/0/.1.changelog.crc", "state/0/_metadata/.metadata.crc"):
        made.write(path)
    for path in ("offsets/.9.uuid.tmp", "state/0/0/.2.changelog.uuid.tmp", "offsets/notes", "state/0/0/notes"):
        made.write(path)
    assert not [path for path in made.closure(5).files if "/." in path or "notes" in path or path.startswith(".")]


def test_a_file_sources_log_is_taken_up_to_the_offset(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for entry in ("8", "9.compact", "10", "11", "12"):
        made.write(f"sources/0/{entry}", "v1")
    # The log may be ahead: of the batch that is planned, or of several where a batch took more than one entry.
    made.batch(4, ['{"logOffset":11}'])
    assert {path for path in made.closure(4).files if path.startswith("sources/")} == _under(
        "sources/0", "8", "9.compact", "10", "11"
    )


def test_a_compacted_entry_beyond_the_offset_is_left_out(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for entry in ("17", "18", "19.compact"):
        made.write(f"sources/0/{entry}", "v1")
    made.batch(4, ['{"logOffset":18}'])
    assert {path for path in made.closure(4).files if path.startswith("sources/")} == _under("sources/0", "17", "18")


def test_a_sources_fixed_notes_are_kept_whatever_they_are_called(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for path in ("sources/0/0", "sources/1/0", "sources/1/1", "sources/2/notes/more"):
        made.write(path)
    # Kafka's, whose offset is no log's; a file source; one that has no data yet.
    made.batch(0, ['{"topic":{"0":5}}', '{"logOffset":0}', "-"])
    assert {path for path in made.closure(0).files if path.startswith("sources/")} == {
        "sources/0/0",
        "sources/1/0",
        "sources/2/notes/more",
    }


@pytest.mark.parametrize("offset", ["17", '"text"', "[1]", "no json", "-"])
def test_an_offset_of_any_other_form_keeps_what_its_source_wrote(tmp_path: Path, offset: str) -> None:
    made = Made(tmp_path)
    made.write("sources/0/3")
    made.batch(0, [offset])
    assert "sources/0/3" in made.closure(0).files


# -- state -------------------------------------------------------------------------------------------------------------


def test_changelogs_alone_are_needed_from_the_first(made: Made) -> None:
    made.changes("state/0/0", range(1, 7))
    assert made.state(3) == _under("state/0/0", "1.changelog", "2.changelog", "3.changelog", "4.changelog")


def test_a_snapshot_stands_for_the_changes_before_it(made: Made) -> None:
    folder = "state/0/0"
    made.changes(folder, range(1, 7))
    made.snapshot(folder, 3, ["a", "b"], ["l"])
    made.snapshot(folder, 6, ["b", "c"])
    assert made.state(4) == _under(
        folder, "3.zip", "SSTs/a-uuid.sst", "SSTs/b-uuid.sst", "logs/l-uuid.log", "4.changelog", "5.changelog"
    )
    assert made.state(5) == _under(folder, "6.zip", "SSTs/b-uuid.sst", "SSTs/c-uuid.sst")
    assert made.state(2) == _under(folder, "3.zip", "SSTs/a-uuid.sst", "SSTs/b-uuid.sst", "logs/l-uuid.log")


def test_without_changelogs_every_version_is_a_snapshot(made: Made) -> None:
    for version in range(1, 7):
        made.snapshot("state/0/0", version, [f"t{version - 1}", f"t{version}"])
    assert made.state(4) == _under("state/0/0", "5.zip", "SSTs/t4-uuid.sst", "SSTs/t5-uuid.sst")


def test_an_empty_snapshot_has_no_tables(made: Made) -> None:
    made.snapshot("state/0/0", 1)
    assert made.state(0) == {"state/0/0/1.zip"}


def test_the_memory_backend_has_deltas_and_snapshots(made: Made) -> None:
    made.changes("state/0/0", range(1, 7), "delta")
    assert made.state(1) == _under("state/0/0", "1.delta", "2.delta")
    made.changes("state/0/0", [4], "snapshot")
    assert made.state(5) == _under("state/0/0", "4.snapshot", "5.delta", "6.delta")


def test_all_operators_partitions_and_stores_are_needed(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=2)
    made.operator(0, partitions=2, name="stateStoreSave")
    made.operator(1, stores=JOIN, partitions=2, version=2, name="symmetricHashJoin")
    folders = [f"state/0/{partition}" for partition in range(2)]
    folders += [f"state/1/{partition}/{store}" for partition in range(2) for store in JOIN]
    for folder in folders:
        made.changes(folder, range(1, 4))
    found = made.closure(1)
    assert made.state(1) == {f"{folder}/{version}.changelog" for folder in folders for version in (1, 2)}
    assert [(one.id, one.name, one.partitions, one.stores) for one in found.operators] == [
        (0, "stateStoreSave", 2, ["default"]),
        (1, "symmetricHashJoin", 2, list(JOIN)),
    ]
    assert found.metadata == ["state/1/_metadata/v2/0"]
    assert {path for path in found.files if "/_" in path} == {
        "state/0/_metadata/metadata",
        "state/1/_metadata/v2/0",
        *(f"state/1/_stateSchema/{store}/0_schema" for store in JOIN),
    }
    for operator in found.operators:
        assert operator.bytes == sum(found.files[path] for path in operator.files)
    for folder in folders:
        made.remove(f"{folder}/1.changelog")
        with pytest.raises(StateFileMissing, match=f"{folder}/1.changelog"):
            made.closure(1)
        made.changes(folder, [1])


def test_an_operator_without_keys_has_one_partition_whatever_its_metadata_say(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=2)
    made.operator(0, partitions=4)
    made.changes("state/0/0", range(1, 3))
    assert made.state(1) == _under("state/0/0", "1.changelog", "2.changelog")
    assert made.closure(1).operators[0].partitions == 4
    made.changes("state/0/2", range(1, 3))
    with pytest.raises(StateFileMissing, match=r"state/0/1/1\.changelog"):
        made.closure(1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("columns", [[], [{"name": "key", "type": "long", "nullable": True, "metadata": {}}]])
def test_one_partition_is_all_that_an_operator_without_keys_can_have(
    tmp_path: Path, version: int, columns: list[object]
) -> None:
    made = Made(tmp_path)
    made.batch(0, conf={"spark.sql.shuffle.partitions": "1"})
    made.operator(0, partitions=1)
    made.changes("state/0/0", [1])
    key, value = json.dumps({"type": "struct", "fields": columns}), json.dumps({"type": "struct", "fields": []})
    pieces = (key[:11], key[11:])
    later = utf("v2") + len(pieces).to_bytes(4) + utf(*pieces) + (1).to_bytes(4) + utf(value)
    made.write("state/0/0/_metadata/schema", later if version == 2 else utf("v1", key, value))
    (found,) = made.closure(0).operators
    assert found.single is not bool(columns)
    assert "state/0/0/1.changelog" in found.files


def test_the_offset_log_tells_the_partitions_and_not_metadata_that_a_repartition_has_left_behind(
    tmp_path: Path,
) -> None:
    made = Made(tmp_path)
    made.batch(0, conf={"spark.sql.shuffle.partitions": "3"})
    made.operator(0, partitions=1)
    for partition in range(3):
        made.changes(f"state/0/{partition}", [1])
    assert made.state(0) == {f"state/0/{partition}/1.changelog" for partition in range(3)}
    (found,) = made.closure(0).operators
    assert found.partitions == 3 and not found.single
    made.remove("state/0/2/1.changelog")
    with pytest.raises(StateFileMissing, match=r"state/0/2/1\.changelog"):
        made.closure(0)


def test_repartitioned_metadata_differ_in_the_number_alone(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.operator(0, stores=("left", "right"), partitions=2)
    before = (made.folder / "state/0/_metadata/metadata").read_bytes()
    after = repartitioned(before, 8)
    version, _, text = after.decode().partition("\n")
    assert version == "v1" and [one["numPartitions"] for one in json.loads(text)["stateStoreInfo"]] == [8, 8]
    assert json.loads(repartitioned(after, 2).decode().partition("\n")[2]) == json.loads(
        before.decode().partition("\n")[2]
    )


def test_more_than_ten_operators_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=1)
    for number in range(11):
        made.operator(number)
        made.changes(f"state/{number}/0", [1])
    assert [one.id for one in made.closure(0).operators] == list(range(11))


def test_metadata_of_a_later_batch_is_left_out(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=6)
    made.operator(version=2, written_by=0, partitions=1)
    made.operator(version=2, written_by=4, partitions=2)
    for partition in range(2):
        made.changes(f"state/0/{partition}", range(1, 7))
    assert "state/0/_metadata/v2/0" in made.closure(3).files
    assert "state/0/_metadata/v2/4" not in made.closure(3).files
    assert made.closure(3).operators[0].partitions == 1
    assert made.closure(4).operators[0].partitions == 2
    assert made.closure(4).metadata == ["state/0/_metadata/v2/4"]


def test_an_operator_without_metadata_is_named(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=1)
    made.changes("state/0/0", [1])
    with pytest.raises(StateFileMissing, match="state/0/_metadata/metadata"):
        made.closure(0)


def test_every_lost_file_is_named(made: Made) -> None:
    folder = "state/0/0"
    made.changes(folder, range(1, 7))
    made.snapshot(folder, 3, ["a", "b"], ["l"])
    # Without the snapshot the older changelogs would do.
    for path in sorted(made.state(5) - {f"{folder}/3.zip"}):
        kept = (made.folder / path).read_bytes()
        made.remove(path)
        with pytest.raises(StateFileMissing, match=f"{path}$"):
            made.closure(5)
        made.write(path, kept)
    made.remove(*(f"{folder}/{name}" for name in ("1.changelog", "3.zip")))
    with pytest.raises(StateFileMissing, match=f"{folder}/1.changelog$"):
        made.closure(5)


@pytest.mark.parametrize("kind", ["zip", "changelog"])
def test_checkpoint_format_2_is_refused(made: Made, kind: str) -> None:
    made.write(f"state/0/0/1{FORMAT_2}.{kind}")
    with pytest.raises(StreamwardenError) as raised:
        made.closure(0)
    assert raised.value.code == "SAVEPOINT_UNSUPPORTED"


def test_the_schemas_digest_is_the_schemas_and_not_the_places(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two", "other"):
        made = Made(tmp_path / name, batches=1)
        made.operator(version=2)
        made.changes("state/0/0", [1])
        if name == "other":
            made.write("state/0/_stateSchema/default/0_schema", "another schema")
        digests.append(made.closure(0).operators[0].schema_sha256)
    assert digests[0] == digests[1] != digests[2]


def test_the_schema_beside_the_first_partition_is_kept(made: Made) -> None:
    made.changes("state/0/0", [1])
    made.write("state/0/0/_metadata/schema", "v3")
    assert "state/0/0/_metadata/schema" in made.closure(0).files


def test_relocated_metadata_names_the_schemas_of_its_new_place(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=1)
    made.operator(3, stores=JOIN, version=2)
    text = (made.folder / "state/3/_metadata/v2/0").read_bytes()
    moved = relocated(text, 3, "s3a://bucket/savepoints/x/checkpoint")
    version, _, body = moved.decode().partition("\n")
    assert version == "v2"
    before = json.loads(text.decode().partition("\n")[2])
    after = json.loads(body)
    for old, new in zip(before["stateStoreInfo"], after["stateStoreInfo"], strict=True):
        store = new["storeName"]
        path = f"s3a://bucket/savepoints/x/checkpoint/state/3/_stateSchema/{store}/0_schema"
        assert new.pop("stateSchemaFilePaths") == [path]
        old.pop("stateSchemaFilePaths")
        assert new == old
    back = relocated(moved, 3, f"file:{made.folder}")
    assert json.loads(back.decode().partition("\n")[2]) == json.loads(text.decode().partition("\n")[2])


def test_metadata_that_names_no_file_is_the_same_elsewhere(tmp_path: Path) -> None:
    made = Made(tmp_path, batches=1)
    made.operator()
    made.changes("state/0/0", [1])
    assert made.closure(0).metadata == []


# -- against a model of Spark's writing and removing -------------------------------------------------------------------


@dataclass
class History:
    """A store's life: at which versions snapshots were made, and when the maintenance looked."""

    rocksdb: bool
    changelog: bool
    versions: int
    snapshots: set[int]
    retain: int
    maintained_at: set[int]
    kept_tables: list[set[str]] = field(default_factory=list)


@st.composite
def histories(draw: st.DrawFn) -> History:
    versions = draw(st.integers(1, 14))
    rocksdb = draw(st.booleans())
    changelog = draw(st.booleans())
    numbers = st.sets(st.integers(1, versions), max_size=versions)
    every = rocksdb and not changelog
    return History(
        rocksdb=rocksdb,
        changelog=changelog,
        versions=versions,
        snapshots=set(range(1, versions + 1)) if every else draw(numbers),
        retain=draw(st.integers(2, 5)),
        maintained_at=draw(numbers),
        # Each table is of one snapshot or, kept by compaction, of some that follow each other.
        kept_tables=[{f"t{number - age}" for age in range(draw(st.integers(0, 3)))} for number in range(versions + 1)],
    )


def _needed(history: History, version: int) -> tuple[int, set[str]]:
    """Return the snapshot that a version is made from (0: none) and its files."""
    snapshot = max((one for one in history.snapshots if one <= version), default=0)
    change = "changelog" if history.rocksdb else "delta"
    files = {f"{one}.{change}" for one in range(snapshot + 1, version + 1)}
    if snapshot:
        files.add(f"{snapshot}.zip" if history.rocksdb else f"{snapshot}.snapshot")
        if history.rocksdb:
            files |= {f"SSTs/{name}-uuid.sst" for name in history.kept_tables[snapshot]}
    return snapshot, files


def _maintain(history: History, folder: Path, now: int) -> None:
    """Remove old files as Spark's maintenance does after version `now`."""
    done = sorted(one for one in history.snapshots if one <= now)
    if history.rocksdb:
        if not done:
            return
        oldest = max((one for one in done if one <= done[-1] - history.retain + 1), default=0)
    else:
        oldest = _needed(history, now - history.retain)[0] or 1 if now > history.retain else 0
    for path in list(folder.iterdir()):
        if path.is_file() and int(path.name.split(".")[0]) < oldest:
            path.unlink()
    if history.rocksdb:
        used = {f"{name}-uuid.sst" for one in done if one >= oldest for name in history.kept_tables[one]}
        for path in folder.glob("SSTs/*"):
            if path.name not in used:
                path.unlink()


@settings(max_examples=60, deadline=None)
@given(histories())
def test_the_closure_of_every_retained_batch_is_exactly_what_its_version_is_made_of(history: History) -> None:
    with TemporaryDirectory() as root:
        made = Made(Path(root))
        made.operator()
        folder = "state/0/0"
        for version in range(1, history.versions + 1):
            made.batch(version - 1)
            if history.rocksdb and version in history.snapshots:
                made.snapshot(folder, version, sorted(history.kept_tables[version]))
            elif not history.rocksdb and version in history.snapshots:
                made.changes(folder, [version], "snapshot")
            if not history.rocksdb or history.changelog:
                made.changes(folder, [version], "changelog" if history.rocksdb else "delta")
            if version in history.maintained_at:
                _maintain(history, made.folder / folder, version)
        retained = range(max(1, history.versions - history.retain + 1), history.versions + 1)
        for version in range(1, history.versions + 1):
            files = {f"{folder}/{name}" for name in _needed(history, version)[1]}
            if all((made.folder / path).exists() for path in files):
                assert made.state(version - 1) == files
            else:
                assert version not in retained
                with pytest.raises(StateFileMissing):
                    made.closure(version - 1)
