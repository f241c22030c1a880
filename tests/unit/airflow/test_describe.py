"""A job's YAML at parse time: whatever is in it, the other jobs keep their DAGs."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamwarden.airflow.describe import describe_job, periodic_savepoints

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 30_000, "- " * 30_000, "a: 2001-99-99", "? [a]\n: b", "a: *b", "\x01", "1"]
)
def test_no_yaml_ends_the_parse_of_dags(text: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/torn.yaml").write_text(text)
    first, whole = describe_job("torn", config=tmp_path)
    assert "torn.yaml cannot be read" in first and "config/jobs/torn.yaml" in whole
    assert periodic_savepoints("torn", config=tmp_path) is None
