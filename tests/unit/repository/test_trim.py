"""docker/trim.py: what it removes, and that it says so when there is nothing to remove."""

from __future__ import annotations

import importlib.util
import platform
import zipfile
from pathlib import Path
from types import ModuleType

import botocore
import pyspark
import pytest

pytestmark = pytest.mark.unit

SCRIPT = Path(__file__).resolve().parents[3] / "docker" / "trim.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trim", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


trim = load()


def jar(site: Path, *names: str) -> Path:
    path = site / "pyspark" / "jars" / "rocksdbjni-1.jar"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, name)
    return path


def test_rocksdb_keeps_its_classes_and_the_library_of_this_processor(tmp_path: Path) -> None:
    own = trim.ROCKSDB[platform.machine()]
    others = ["librocksdbjni-linux64-musl.so", "librocksdbjni-osx-arm64.jnilib", "librocksdbjni-win64.dll"]
    path = jar(tmp_path, "org/rocksdb/RocksDB.class", own, *others)
    trim.natives(tmp_path)
    with zipfile.ZipFile(path) as found:
        assert found.namelist() == ["org/rocksdb/RocksDB.class", own]
        assert found.testzip() is None
    assert list(path.parent.iterdir()) == [path]


def test_the_installed_rocksdb_has_the_library(tmp_path: Path) -> None:
    (path,) = (Path(pyspark.__file__).parent / "jars").glob("rocksdbjni-*.jar")
    assert set(trim.ROCKSDB.values()) <= set(zipfile.ZipFile(path).namelist())


def test_only_packages_own_tests_are_removed(tmp_path: Path) -> None:
    for name in ("pandas/tests/io", "pandas/core", "scipy/stats/tests", "numpy/_core/tests", "ours/tests"):
        (tmp_path / name).mkdir(parents=True)
    trim.tests(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    # numpy.testing, which is public, imports from numpy's.
    assert left == {"pandas/core", "scipy/stats", "numpy/_core", "ours/tests"}
    assert not (tmp_path / "scipy" / "stats" / "tests").exists()


def test_the_installed_spark_has_what_is_removed() -> None:
    for pattern in trim.JARS:
        assert list((Path(pyspark.__file__).parent / "jars").glob(pattern)), pattern


def test_the_installed_client_of_amazon_has_what_is_kept() -> None:
    services = Path(botocore.__file__).parent / "data"
    assert [name for name in trim.AWS if not (services / name).is_dir()] == []


@pytest.mark.parametrize("step", ["tests", "symbols", "natives", "jars", "languages"])
def test_what_is_not_there_any_more_fails_the_build(step: str, tmp_path: Path) -> None:
    jar(tmp_path, "org/rocksdb/RocksDB.class")
    with pytest.raises(SystemExit, match="out of date"):
        getattr(trim, step)(tmp_path)
