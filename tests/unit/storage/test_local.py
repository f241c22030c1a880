from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from streamwarden.storage import LocalStorage

pytestmark = pytest.mark.unit


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


def test_lock_files_dont_grow_with_the_keys(tmp_path: Path) -> None:
    """Each driver, savepoint and operation has keys of its own, and lock files are never removed."""
    storage = LocalStorage(tmp_path)
    for number in range(2_000):
        storage.delete(f"control/job/launches/{number}.json")
    assert len(list((tmp_path / ".locks").iterdir())) <= 256
    # Keys that share a lock are documents of their own.
    etags = [storage.create(f"documents/{number}", str(number).encode()) for number in range(300)]
    assert storage.replace("documents/7", b"seven", etags[7])
    assert [storage.read(f"documents/{number}").data for number in (6, 7, 299)] == [b"6", b"seven", b"299"]  # type: ignore[union-attr]
