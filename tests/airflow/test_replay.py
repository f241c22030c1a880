from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators import command
from streamwarden.airflow.operators.replay import ReplayOperator
from tests.airflow.conftest import Place

pytestmark = pytest.mark.airflow

LINE = json.dumps({"id": "r1", "row": {"n": 1}})
# Prints the words that it was called with, and the rows in the file that they name.
ECHO = """
import json, pathlib, sys
words = sys.argv[1:]
rows = pathlib.Path(words[words.index("--rows") + 1]).read_text() if "--rows" in words else ""
print(json.dumps([{"words": words, "text": rows, "rows": 1, "sent_as": "f"}]))
"""


def replay(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, **fields: Any) -> Any:
    (tmp_path / "fake").write_text(script)
    real = command.subprocess.Popen

    def popen(words: list[str], **kwargs: Any) -> Any:
        return real([sys.executable, str(tmp_path / "fake"), *words[3:]], **kwargs)

    monkeypatch.setattr(command, "subprocess", SimpleNamespace(**{**vars(command.subprocess), "Popen": popen}))
    operator = ReplayOperator(**{"task_id": "replay", "table": "t", "note": "why", **place.place(), **fields})
    return operator.execute({"dag_run": SimpleNamespace(triggering_user_name="ann")})  # type: ignore[typeddict-item]


def test_corrected_rows_and_the_person_reach_the_command(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (done,) = replay(place, monkeypatch, tmp_path, ECHO, rows=LINE)
    assert done["text"] == LINE
    assert done["words"][:5] == ["quarantine", "replay", "t", "--note", "why"]
    assert "airflow, for ann" in done["words"]
    (done,) = replay(place, monkeypatch, tmp_path, ECHO, unchanged="True", rule="t.n")
    assert done["words"][-3:] == ["--unchanged", "--rule", "t.n"]


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (2, "[QUARANTINE_REPLAYED] a row was replayed", AirflowFailException),
        (2, "[QUARANTINE_EDITS_FAILED] lost", AirflowException),
        (137, "", AirflowException),
    ],
)
def test_only_what_a_retry_can_help_is_retried(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, words: str, expected: type[Exception]
) -> None:
    script = f"import sys; print({words!r}, file=sys.stderr); sys.exit({code})"
    with pytest.raises(AirflowException) as raised:
        replay(place, monkeypatch, tmp_path, script, rows=LINE)
    assert type(raised.value) is expected


@pytest.mark.parametrize("fields", [{}, {"rows": LINE, "unchanged": True}])
def test_rows_or_unchanged(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fields: dict[str, Any]
) -> None:
    with pytest.raises(AirflowFailException, match="give the corrected rows"):
        replay(place, monkeypatch, tmp_path, ECHO, **fields)
