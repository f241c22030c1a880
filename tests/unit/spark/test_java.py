from __future__ import annotations

from pathlib import Path

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.spark.jars import find_java
from streamwarden.spark.java_options import quoted

pytestmark = pytest.mark.unit


def java(home: Path, script: str) -> Path:
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    return launcher


def test_a_java_whose_process_is_killed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    once = tmp_path / "once"
    script = f"if [ ! -e {once} ]; then touch {once}; kill -9 $$; fi; echo 'openjdk version \"17.0.1\"' >&2"
    launcher = java(tmp_path, script)
    assert find_java() == str(launcher)


@pytest.mark.parametrize(
    ("script", "said"),
    [("kill -9 $$", r"unusable \(exit code -9\)"), ("exit 3", "exit code 3"), ("echo 'version \"11.0\"' >&2", "11.0")],
)
def test_what_is_no_java_17_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java(tmp_path, script)
    with pytest.raises(StreamwardenError, match=rf"JAVA_MISSING.*{said}"):
        find_java()


def test_an_option_with_a_path_is_one_option() -> None:
    assert quoted('-Dx=/a b/"c"\\d') == r'"-Dx=/a b/\"c\"\\d"'
