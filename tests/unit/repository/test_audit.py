"""The audit finds what it looks for, and says so where it cannot look."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", REPOSITORY / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MADE", tmp_path)
    return module


def advisory(*events: dict[str, str], versions: tuple[str, ...] = ()) -> dict[str, Any]:
    part = {"package": {"name": "The_Package"}, "ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}
    return {"id": "PYSEC-1", "affected": [{**part, "versions": list(versions)}]}


@pytest.mark.parametrize(
    ("events", "version", "is_affected"),
    [
        ([{"introduced": "0"}], "9", True),
        ([{"introduced": "0"}, {"fixed": "2.10"}], "2.9", True),
        ([{"introduced": "0"}, {"fixed": "2.10"}], "2.10", False),
        ([{"introduced": "3"}, {"fixed": "4"}], "2", False),
        ([{"introduced": "0"}, {"fixed": "1"}, {"introduced": "2"}, {"fixed": "3"}], "1.5", False),
        ([{"introduced": "0"}, {"fixed": "1"}, {"introduced": "2"}, {"fixed": "3"}], "2.5", True),
        ([{"introduced": "0"}, {"last_affected": "2"}], "2", True),
        ([{"introduced": "0"}, {"last_affected": "2"}], "2.0.1", False),
    ],
)
def test_a_version_in_a_range_is_affected(
    audit: ModuleType, events: list[dict[str, str]], version: str, is_affected: bool
) -> None:
    found = list(audit.affected(advisory(*events), {"the-package": version}))
    assert bool(found) is is_affected
    assert not list(audit.affected(advisory(*events), {"another": version}))


def test_an_advisory_is_ignored_only_with_a_reason_and_for_a_time(audit: ModuleType) -> None:
    found = [{"package": "p", "version": "1", "ids": ["PYSEC-1", "CVE-1"], "fixed": ["2"]}]
    assert list(audit.judged({}, found)) == ["p 1: PYSEC-1, CVE-1; fixed in 2"]
    policy = {"ignored": [{"id": "CVE-1", "reason": "not used", "until": date(2999, 1, 1)}]}
    assert not list(audit.judged(policy, found)) and not list(audit.stale(policy))
    for change in ({"reason": ""}, {"until": "soon"}, {"until": date(2020, 1, 1)}):
        assert list(audit.stale({"ignored": [{**policy["ignored"][0], **change}]}))


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ("MIT", True), ("mit AND bsd-3-clause", True), ("MIT AND GPL-3.0", False), ("GPL-3.0 OR MIT", True),
        ("GPL-3.0", False), ("UNKNOWN", False), ("", False), ("Artistic License; GPL", False),
    ],
)  # fmt: skip
def test_a_licence_is_allowed_by_the_policy(audit: ModuleType, said: str, allowed: bool) -> None:
    assert audit.is_allowed(said, {"mit", "bsd-3-clause"}) is allowed


@pytest.mark.parametrize(
    "answer",
    [None, [{"name": "jinja2", "skip_reason": "not found"}], [{"name": "jinja2", "version": "2.10", "vulns": []}], []],
)
def test_an_index_without_advisories_is_no_clean_bill(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(audit, "audited", lambda *_: answer)
    assert audit.from_index() is None


def test_a_folder_that_is_no_database_is_refused(audit: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no copy of"):
        audit.from_folder(tmp_path, {"p": "1"})


def test_advisories_are_read_from_a_folder(audit: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "vulns" / "the-package"
    folder.mkdir(parents=True)
    for name, more in (("a", {}), ("b", {"withdrawn": "2026-01-01"})):
        # JSON is YAML.
        (folder / f"{name}.yaml").write_text(json.dumps({**advisory({"introduced": "0"}), **more}))
    assert audit.newest_of(tmp_path) == date(1970, 1, 1)
    (one,) = audit.from_folder(tmp_path, {"the-package": "1"})
    assert one == {"package": "the-package", "version": "1", "ids": ["PYSEC-1"], "fixed": []}
    (folder / "c.yaml").write_text('id: PYSEC-3\nmodified: "2026-02-03T04:05:06Z"\n')
    assert audit.newest_of(tmp_path) == date(2026, 2, 3)


def test_the_policy_has_reasons(audit: ModuleType) -> None:
    policy = tomllib.loads((REPOSITORY / "scripts" / "audit.toml").read_text())
    assert not list(audit.stale(policy)) and policy["allowed"] == sorted(policy["allowed"], key=str.lower)
