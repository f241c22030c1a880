from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from streamwarden.storage import LocalFiles

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "root")


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


def test_a_file_that_goes_while_it_is_listed_hides_no_other(files: LocalFiles) -> None:
    """Spark removes old state while a savepoint looks for what it needs. A link to nothing is as good as gone."""
    (files.root / "a").mkdir(parents=True)
    for number in range(40):
        if number % 2:
            (files.root / "a" / f"{number:02d}").symlink_to("nowhere")
        else:
            files.write(f"a/{number:02d}", b"x")
    assert [info.key for info in files.walk("a")] == [f"a/{number:02d}" for number in range(0, 40, 2)]


def test_deleting_a_tree_removes_its_folders_and_may_be_repeated(files: LocalFiles) -> None:
    files.write("a/x/1", b"one")
    files.write("a/y/z/2", b"two")
    assert files.delete_tree("a") == 2
    assert not (files.root / "a").exists()
    assert files.delete_tree("a") == 0


def test_free_space_is_that_of_the_disk_also_before_the_root_is_made(files: LocalFiles) -> None:
    free = files.free_bytes()
    assert free is not None
    assert free == pytest.approx(shutil.disk_usage(files.root.parent).free, rel=0.1)
    assert not files.root.exists()
    assert os.access(files.root.parent, os.W_OK)
