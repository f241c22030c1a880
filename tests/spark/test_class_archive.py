"""The archive of Spark's classes that set-up made: used where it fits, and not missed where it doesn't."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamwarden.spark import class_archive
from streamwarden.spark.class_archive import archive_path, java_options

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path
from streamwarden.spark.session import build_session
from streamwarden.storage import S3Location
s3 = S3Location(bucket="none", endpoint="http://127.0.0.1:9") if sys.argv[1] == "s3" else None
session = build_session("archive", master="local[1]", s3=s3)
assert session.range(3).count() == 3
print("maps:", Path(f"/proc/{session._jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text())
"""


def mapped(use: str) -> tuple[set[str], str]:
    """Return the paths of the archives that the JVM of a new session has mapped, and all that was said."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, use], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said, maps = done.stdout.split("maps:")
    return set(re.findall(r"/\S+\.jsa", maps)), said + done.stderr


@pytest.mark.parametrize("use", ["", pytest.param("s3", marks=pytest.mark.long)])
def test_a_session_maps_the_archive_of_its_class_path(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive_path(use).is_file(), "make setup makes it"
    # Spark puts this folder before its own jars. In a pod there always is one.
    (tmp_path / "spark.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    archives, _ = mapped(use)
    assert str(archive_path(use)) in archives


@pytest.mark.long
def test_an_archive_of_another_class_path_is_passed_over_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same happens after an update of Java."""
    for jar in archive_path().parent.glob("*.jar"):
        (tmp_path / jar.name).symlink_to(jar)
    (tmp_path / "classes.jsa").symlink_to(archive_path("s3"))
    own = str(archive_path().parent)
    monkeypatch.setenv("STREAMWARDEN_JARS", str(tmp_path))
    archives, said = mapped("")
    assert not [path for path in archives if path.startswith((str(tmp_path), own))]
    assert "cds" not in said and "shared" not in said.lower()


def test_without_an_archive_there_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "jar_dir", lambda: tmp_path)
    assert java_options() == ""
