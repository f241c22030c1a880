from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators import command, gate
from streamwarden.airflow.operators.gate import DecideOperator, GateOperator
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
    operator = CheckOperator(task_id="check", tables_param="tables", data_docs=True, **place.place())
    result = operator.execute({"params": params})  # type: ignore[typeddict-item]
    return result, asked[0]


def test_passes_tables_and_returns_the_report(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = json.dumps({"run": "7", "success": True, "report": "r.html", "tables": []})
    script = f"import sys; print('working', file=sys.stderr); print({good!r})"
    result, asked = check(place, monkeypatch, tmp_path, script, tables=["trips", "card_sessions"])
    assert result == {"run": "7", "success": True, "report": "r.html"}
    assert asked == [
        "-m", "streamwarden.cli", "check", "--json", "--data-docs", "--table", "trips", "--table", "card_sessions"
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


def watching(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, **context: Any) -> str:
    """Run the gate's operator with a script in the place of the gate until that ends; return the error's words."""
    (tmp_path / "fake").write_text(script)
    real = command.subprocess.Popen

    def popen(_: list[str], **kwargs: Any) -> Any:
        return real([sys.executable, str(tmp_path / "fake")], **kwargs)

    monkeypatch.setattr(command, "subprocess", SimpleNamespace(**{**vars(command.subprocess), "Popen": popen}))
    operator = GateOperator(task_id="watch", **place.place())
    if "stop_after" in context:
        threading.Timer(context.pop("stop_after"), operator.on_kill).start()
    with pytest.raises(AirflowException) as raised:
        operator.execute(context)  # type: ignore[arg-type]
    return str(raised.value)


PARENT = "import os, sys; sys.stderr.write(repr([os.environ.get(f'OPENLINEAGE_{x}PARENT_ID') for x in ('', 'ROOT_')]))"


def provider(monkeypatch: pytest.MonkeyPatch, *, disabled: bool = False, broken: bool = False) -> None:
    """Put a stand-in of Airflow's provider for OpenLineage in place, which the lock does not have."""

    def lineage_parent_id(ti: Any) -> str:
        if broken:
            raise AttributeError("clear_number")
        return f"airflow/{ti.dag_id}.{ti.task_id}/1"

    conf = SimpleNamespace(is_disabled=lambda: disabled)
    macros = SimpleNamespace(
        lineage_parent_id=lineage_parent_id, lineage_root_parent_id=lambda ti: f"airflow/{ti.dag_id}/2"
    )
    package = "airflow.providers.openlineage"
    plugins = SimpleNamespace(macros=macros)
    modules = {package: SimpleNamespace(conf=conf, plugins=plugins), f"{package}.plugins": plugins}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]


def test_the_gates_lineage_has_the_tasks_run_as_its_parent(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ti = SimpleNamespace(dag_id="gate", task_id="watch")

    def parents() -> str:
        return watching(place, monkeypatch, tmp_path, PARENT, ti=ti)

    assert "[None, None]" in parents()
    provider(monkeypatch)
    assert "['airflow/gate.watch/1', 'airflow/gate/2']" in parents()
    provider(monkeypatch, disabled=True)
    assert "[None, None]" in parents()
    provider(monkeypatch, broken=True)
    assert "[None, None]" in parents()


def test_a_stopped_gate_ends_by_itself_and_a_hanging_one_is_killed(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gate, "_END_S", 1.0)
    ends = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); time.sleep(60)"
    assert "code 7" in watching(place, monkeypatch, tmp_path, ends, stop_after=2.0)
    hangs = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert "code -9" in watching(place, monkeypatch, tmp_path, hangs, stop_after=2.0)
