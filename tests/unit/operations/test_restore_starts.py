"""Which contents the quarantine tables of row rules get at a restore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamwarden.model.row_rules import RowRule
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.operations.restore import _missing_rules, _starts

pytestmark = pytest.mark.unit

RULE = RowRule(id="t.n", reason="", fails="`n` < 0", columns={"n": "number"})


def spec(name: str = "job", table: str = "t", *, rules: bool) -> JobSpec:
    sinks: list[dict[str, Any]] = [{"table": table, "mode": "append", "row_rules": [RULE] if rules else []}]
    if rules:
        sinks.append({"table": f"{table}_quarantine", "output": "rules/main", "mode": "append"})
    source = {"kind": "files", "path": "landing"}
    return JobSpec.model_validate({"name": name, "module": "m", "source": source, "sinks": sinks})


def manifest(of: JobSpec) -> Manifest:
    sinks = [SimpleNamespace(table=sink.table, version=7) for sink in of.delta_sinks]
    return cast(Manifest, SimpleNamespace(job=of.name, spec=of, sinks=sinks))


def starts(before: JobSpec, now: JobSpec, outputs: Any = "default") -> dict[str, tuple[int | None, str | None]]:
    return {one.table: (one.version, one.source) for one in _starts(manifest(before), now, outputs)}


def test_a_quarantine_that_is_younger_than_the_savepoint_is_emptied() -> None:
    expected = {"t": (7, None), "t_quarantine": (None, None)}
    assert starts(spec(rules=False), spec(rules=True)) == expected
    assert starts(spec(rules=False), spec(rules=True), "rewind") == expected
    assert starts(spec(rules=False), spec(rules=True), "leave") == {}
    assert starts(spec(rules=True), spec(rules=True)) == {"t": (7, None), "t_quarantine": (7, None)}


def test_a_clone_gets_a_copy_of_the_quarantine() -> None:
    clone = spec("clone", "t2", rules=True)
    assert starts(spec(rules=True), clone) == {"t2": (7, "t"), "t2_quarantine": (7, "t_quarantine")}
    assert starts(spec(rules=False), clone) == {"t2": (7, "t"), "t2_quarantine": (None, None)}
    assert _missing_rules(manifest(spec(rules=True)), clone) is None


def test_a_clone_without_the_rules_of_the_original_is_warned_about() -> None:
    warning = _missing_rules(manifest(spec(rules=True)), spec("clone", "t2", rules=False))
    assert warning is not None and "expectations/t2.json" in warning and "t do not judge t2" in warning
