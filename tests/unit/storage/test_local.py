from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from streamwarden.storage import Conflict, LocalStorage

pytestmark = pytest.mark.unit


def test_reads_what_was_written_and_none_otherwise(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert storage.read("a/b.json") is None
    etag = storage.write("a/b.json", b"1")
    entry = storage.read("a/b.json")
    assert entry is not None and (entry.data, entry.etag) == (b"1", etag)
    storage.delete("a/b.json")
    storage.delete("a/b.json")
    assert storage.read("a/b.json") is None


def test_conditional_writes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    first = storage.create("k", b"1")
    with pytest.raises(Conflict):
        storage.create("k", b"2")
    second = storage.replace("k", b"2", first)
    with pytest.raises(Conflict):
        storage.replace("k", b"3", first)
    with pytest.raises(Conflict):
        storage.replace("missing", b"3", second)
    entry = storage.read("k")
    assert entry is not None and entry.data == b"2"


def test_lists_keys_below_a_prefix_without_its_own_files(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("jobs/a/x.json", b"")
    storage.write("jobs/b.json", b"")
    storage.write("jobsother/c.json", b"")
    assert storage.list("jobs") == ["jobs/a/x.json", "jobs/b.json"]
    assert storage.list("nothing") == []


@pytest.mark.parametrize("key", ["../x", "a/../../x", "", "a//b", "./a"])
def test_keys_stay_below_the_root(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a storage key"):
        LocalStorage(tmp_path / "root").write(key, b"")


def _count(root: Path, times: int) -> None:
    storage = LocalStorage(root)
    done = 0
    while done < times:
        entry = storage.read("counter")
        assert entry is not None
        try:
            storage.replace("counter", str(int(entry.data) + 1).encode(), entry.etag)
        except Conflict:
            continue
        done += 1


def test_of_racing_processes_no_write_is_lost(tmp_path: Path) -> None:
    LocalStorage(tmp_path).create("counter", b"0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(tmp_path, 50)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    entry = LocalStorage(tmp_path).read("counter")
    assert entry is not None and entry.data == b"200"


def _write_forever(root: Path) -> None:
    storage = LocalStorage(root)
    number = 0
    while True:
        number += 1
        storage.write("document", str(number).encode() * 20_000)


def test_a_killed_writer_leaves_a_whole_document_and_no_lock(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        process = context.Process(target=_write_forever, args=(tmp_path,))
        process.start()
        while (entry := storage.read("document")) is None:
            time.sleep(0.01)
        for _ in range(20):
            entry = storage.read("document")
            assert entry is not None
            assert len(entry.data) % 20_000 == 0 and len(entry.data) > 0
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        storage.write("document", b"1" * 20_000)
