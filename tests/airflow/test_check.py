from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators import command
from streamwarden.airflow.operators.gate import DecideOperator
from streamwarden.airflow.operators.quality import CheckOperator
from tests.airflow.conftest import Place

pytestmark = pytest.mark.airflow

FAILED = {
    "run": "1",
    "success": False,
    "report": "report.html",
    "tables": [
        {"table": "trips", "success": True, "failures": []},
        {
            "table": "zone_windows",
            "success": False,
            "failures": [
                {
                    "expectation": "expect_column_values_to_not_be_null",
                    "column": "zone_id",
                    "severity": "critical",
                    "detail": "3 of 90 rows",
                }
            ],
        },
    ],
}


def check(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, **params: Any) -> Any:
    """Run the operator with a script in the place of the real command line."""
    (tmp_path / "fake").write_text(script)
    real = command.subprocess.Popen
    asked: list[list[str]] = []

    def popen(command: list[str], **kwargs: Any) -> Any:
        asked.append(command[1:])
        return real([sys.executable, str(tmp_path / "fake")], **kwargs)

    monkeypatch.setattr(command, "subprocess", SimpleNamespace(**{**vars(command.subprocess), "Popen": popen}))
    operator = CheckOperator(task_id="check", tables_param="tables", **place.place())
    result = operator.execute({"params": params})  # type: ignore[typeddict-item]
    return result, asked[0]


def test_passes_tables_and_returns_the_report(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = json.dumps({"run": "7", "success": True, "report": "r.html", "tables": []})
    script = f"import sys; print('working', file=sys.stderr); print({good!r})"
    result, asked = check(place, monkeypatch, tmp_path, script, tables=["trips", "card_sessions"])
    assert result == {"run": "7", "success": True, "report": "r.html"}
    assert asked == [
        "-m", "streamwarden.cli", "check", "--json", "--table", "trips", "--table", "card_sessions"
    ]  # fmt: skip


def test_failure_names_table_and_expectation(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = f"print({json.dumps(FAILED)!r}); raise SystemExit(1)"
    with pytest.raises(AirflowFailException) as raised:
        check(place, monkeypatch, tmp_path, script, tables=[])
    assert "zone_windows: expect_column_values_to_not_be_null on zone_id (critical): 3 of 90 rows" in str(raised.value)


def test_other_errors_bring_the_words_of_the_command(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = "import sys; print('[TABLE_NOT_FOUND] no trips', file=sys.stderr); sys.exit(2)"
    with pytest.raises(AirflowException, match=r"code 2: \[TABLE_NOT_FOUND\] no trips"):
        check(place, monkeypatch, tmp_path, script, tables=[])


def decide(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, **given: str) -> list[str]:
    """Run the operator for a person's decision with a script in the place of the command line; return what it asked."""
    (tmp_path / "fake").write_text(script)
    real = command.subprocess.Popen
    asked: list[list[str]] = []

    def popen(arguments: list[str], **kwargs: Any) -> Any:
        asked.append(arguments[1:])
        return real([sys.executable, str(tmp_path / "fake")], **kwargs)

    monkeypatch.setattr(command, "subprocess", SimpleNamespace(**{**vars(command.subprocess), "Popen": popen}))
    operator = DecideOperator(task_id="decide", **given, **place.place())
    operator.execute({"dag_run": SimpleNamespace(run_id="run-1")})  # type: ignore[typeddict-item]
    return asked[0][2:]


def test_a_decision_becomes_a_command(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked(decision: str, note: str = "", script: str = "") -> list[str]:
        return decide(place, monkeypatch, tmp_path, script, table="trips", decision=decision, note=note)

    assert asked("check") == ["gate", "check", "trips"]
    assert asked("check anew") == ["gate", "check", "trips", "--anew"]
    assert asked("accept", "planted") == ["gate", "accept", "trips", "--note", "planted (run run-1)"]
    with pytest.raises(AirflowFailException, match="needs a note"):
        asked("accept", " ")
    with pytest.raises(AirflowFailException, match="is held: trips: held 8"):
        asked("check", script="print('trips: held 8'); raise SystemExit(1)")
    with pytest.raises(AirflowException, match="code 2: broken"):
        asked("check", script="import sys; sys.stderr.write('broken'); raise SystemExit(2)")
