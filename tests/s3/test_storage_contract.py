"""What every storage promises, on disk and on S3: the same tests for both."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamwarden.storage import Conflict, FileStore, LocalFiles, LocalStorage, S3Files, S3Storage, Storage

KINDS = [pytest.param("disk", marks=pytest.mark.unit), pytest.param("s3", marks=pytest.mark.s3)]
RACERS = 16


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return LocalStorage(tmp_path / "root")
    return S3Storage(request.getfixturevalue("s3").location)


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    if request.param == "disk":
        return LocalFiles(tmp_path / "root")
    return S3Files(request.getfixturevalue("s3").location)


def test_reads_what_was_written_and_none_otherwise(storage: Storage) -> None:
    assert storage.read("a/b.json") is None
    etag = storage.write("a/b.json", b"1")
    entry = storage.read("a/b.json")
    assert entry is not None and (entry.data, entry.etag) == (b"1", etag)
    storage.delete("a/b.json")
    storage.delete("a/b.json")
    assert storage.read("a/b.json") is None


def test_conditional_writes(storage: Storage) -> None:
    first = storage.create("k", b"1")
    with pytest.raises(Conflict):
        storage.create("k", b"1")
    second = storage.replace("k", b"2", first)
    with pytest.raises(Conflict):
        storage.replace("k", b"3", first)
    with pytest.raises(Conflict):
        storage.replace("missing", b"3", second)
    entry = storage.read("k")
    assert entry is not None and (entry.data, entry.etag) == (b"2", second)


def test_lists_keys_below_a_prefix_without_hidden_ones(storage: Storage) -> None:
    for key in ("jobs/a/x.json", "jobs/b.json", "jobs/.hidden", "jobsother/c.json"):
        storage.write(key, b"")
    assert storage.list("jobs") == ["jobs/a/x.json", "jobs/b.json"]
    assert storage.list("nothing") == []


@pytest.mark.parametrize("key", ["../x", "a/../../x", "", "a//b", "./a"])
def test_keys_stay_below_the_root(storage: Storage, files: FileStore, key: str) -> None:
    for write in (storage.write, files.write):
        with pytest.raises(ValueError, match="not a"):
            write(key, b"")


def test_of_racing_threads_one_creates_and_one_replaces(storage: Storage) -> None:
    def attempt(work: Callable[[], str]) -> str | None:
        try:
            return work()
        except Conflict:
            return None

    with ThreadPoolExecutor(RACERS) as pool:
        for round_ in range(3):
            key = f"race/{round_}"
            # All with the very same bytes: who won must not be told by them.
            made = list(pool.map(lambda _, k=key: attempt(lambda: storage.create(k, b"x")), range(RACERS)))
            (etag,) = [one for one in made if one]
            won = list(
                pool.map(lambda n, k=key, e=etag: attempt(lambda: storage.replace(k, b"%d" % n, e)), range(RACERS))
            )
            (winner,) = [number for number, one in enumerate(won) if one]
            entry = storage.read(key)
            assert entry is not None and entry.data == b"%d" % winner


def _count(storage: Storage, times: int) -> None:
    done = 0
    while done < times:
        entry = storage.read("counter")
        assert entry is not None
        try:
            storage.replace("counter", str(int(entry.data) + 1).encode(), entry.etag)
        except Conflict:
            continue
        done += 1


def test_of_racing_processes_no_write_is_lost(storage: Storage) -> None:
    storage.create("counter", b"0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(storage, 30)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    entry = storage.read("counter")
    assert entry is not None and entry.data == b"120"


def test_a_walk_finds_every_file_below_a_prefix_and_nothing_beside_it(files: FileStore) -> None:
    for key in ("a/x/1", "a/x/.hidden", "a/y", "ab/z"):
        files.write(key, key.encode())
    assert [(info.key, info.size) for info in files.walk("a")] == [("a/x/.hidden", 11), ("a/x/1", 5), ("a/y", 3)]
    assert list(files.walk("none")) == []
    names = [info.key for info in files.walk("a")]
    for key in names:
        behind = [info.key for info in files.walk("a", after=key.removeprefix("a/"))]
        assert behind == [name for name in names if name > key]
    assert files.folders("a") == ["x"]
    assert files.folders("none") == []


def test_a_copy_outlives_the_original_and_is_not_written_over_with_it(files: FileStore) -> None:
    files.write("a/1", b"one")
    files.copy("a/1", "b/1")
    files.write("a/1", b"two")
    assert files.read("b/1") == b"one"
    files.copy("a/1", "b/1")
    assert files.read("b/1") == b"two"
    assert files.delete_tree("a") == 1
    assert files.read("b/1") == b"two"


def test_many_files_are_copied_and_hashed_with_progress(files: FileStore) -> None:
    for number in range(50):
        files.write(f"a/{number}", b"x" * number)
    seen: list[int] = []
    files.copy_many([(f"a/{number}", f"b/{number}") for number in range(50)], done=seen.append)
    assert max(seen) == 50
    hashed = files.hash_many([f"b/{number}" for number in range(50)])
    assert hashed["b/7"].size == 7
    assert hashed["b/7"].sha256 == hashlib.sha256(b"x" * 7).hexdigest()
    assert hashed["b/0"].size == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.copy_many([("a/1", "b/1"), ("a/2", "b/2")]),
        lambda files: files.hash_many(["a/1", "a/2"]),
        lambda files: files.read("a/2"),
    ],
)
def test_a_file_that_is_gone_is_said_so(files: FileStore, call: Callable[[FileStore], object]) -> None:
    files.write("a/1", b"one")
    with pytest.raises(FileNotFoundError):
        call(files)


def test_deleting_a_tree_may_be_repeated_and_touches_nothing_beside_it(files: FileStore) -> None:
    for key in ("a/x/1", "a/y/z/2", "ab/3"):
        files.write(key, b"one")
    assert files.delete_tree("a") == 2
    assert (files.delete_tree("a"), list(files.walk("a"))) == (0, [])
    assert files.read("ab/3") == b"one"
    files.delete("ab/3")
    files.delete("ab/3")
    assert list(files.walk("ab")) == []
