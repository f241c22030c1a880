"""What a set-up does that cannot make the archive of Spark's classes."""

from __future__ import annotations

import pytest

from streamwarden.spark import class_archive

pytestmark = pytest.mark.unit


def test_an_image_is_not_built_without_the_archive_that_a_checkout_can_do_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(use: str) -> None:
        raise OSError("no JVM here")

    monkeypatch.setattr(class_archive, "build", build)
    assert class_archive.main([]) == 0
    assert class_archive.main(["--required"]) == 1
    assert capsys.readouterr().err.count("no JVM here") == 4
    assert class_archive.main(["--required", "s3"]) == 1
    assert capsys.readouterr().err.count("no JVM here") == 1
