"""A driver with all that it has on S3 is paused past its lease, wakes, and writes nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Place
from tests.integration.test_fencing import wakes_in_another_generation

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.slow]


def test_paused_before_a_commit_of_an_earlier_generation(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence is a commit by conditional PUT, and Delta heeds it there as on disk."""
    wakes_in_another_generation(place, tmp_path / "paused", monkeypatch)
