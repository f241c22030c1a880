from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamwarden.storage import LocalFiles

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "root")


def test_a_walk_finds_every_file_below_a_prefix_and_nothing_beside_it(files: LocalFiles) -> None:
    for key in ("a/x/1", "a/x/.hidden", "a/y", "ab/z"):
        files.write(key, key.encode())
    assert [(info.key, info.size) for info in files.walk("a")] == [("a/x/.hidden", 11), ("a/x/1", 5), ("a/y", 3)]
    assert list(files.walk("none")) == []
    assert files.folders("a") == ["x"]
    assert files.folders("none") == []


def test_a_copy_shares_its_bytes_and_outlives_the_original(files: LocalFiles) -> None:
    files.write("a/1", b"one")
    files.copy("a/1", "b/1")
    assert [info.links for info in files.walk("b")] == [2]
    files.delete_tree("a")
    assert files.read("b/1") == b"one"


def test_writing_over_a_file_leaves_its_copies_alone(files: LocalFiles) -> None:
    files.write("a/1", b"one")
    files.copy("a/1", "b/1")
    files.write("a/1", b"two")
    assert files.read("b/1") == b"one"


def test_where_there_are_no_hard_links_bytes_are_copied(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    files.write("a/1", b"one")
    files.copy("a/1", "b/1")
    assert files.read("b/1") == b"one"
    assert [info.links for info in files.walk("b")] == [1]


def test_many_files_are_copied_and_hashed_with_progress(files: LocalFiles) -> None:
    for number in range(50):
        files.write(f"a/{number}", b"x" * number)
    seen: list[int] = []
    files.copy_many([(f"a/{number}", f"b/{number}") for number in range(50)], done=seen.append)
    assert max(seen) == 50
    hashed = files.hash_many([f"b/{number}" for number in range(50)])
    assert hashed["b/7"].size == 7
    assert hashed["b/7"].sha256 == hashlib.sha256(b"x" * 7).hexdigest()


@pytest.mark.parametrize(
    "call", [lambda f: f.copy_many([("a/1", "b/1"), ("a/2", "b/2")]), lambda f: f.hash_many(["a/1", "a/2"])]
)
def test_a_file_that_is_gone_is_said_so(files: LocalFiles, call: Callable[[LocalFiles], object]) -> None:
    files.write("a/1", b"one")
    with pytest.raises(FileNotFoundError):
        call(files)


def test_deleting_a_tree_removes_its_folders_and_may_be_repeated(files: LocalFiles) -> None:
    files.write("a/x/1", b"one")
    files.write("a/y/z/2", b"two")
    assert files.delete_tree("a") == 2
    assert not (files.root / "a").exists()
    assert files.delete_tree("a") == 0


@pytest.mark.parametrize("key", ["../out", "a/../../out", "", "a//b"])
def test_a_key_stays_below_the_root(files: LocalFiles, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        files.write(key, b"")


def test_free_space_is_that_of_the_disk_also_before_the_root_is_made(files: LocalFiles) -> None:
    free = files.free_bytes()
    assert free is not None
    assert free == pytest.approx(shutil.disk_usage(files.root.parent).free, rel=0.1)
    assert not files.root.exists()
    assert os.access(files.root.parent, os.W_OK)
