from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from streamwarden.model.spec import KeepSpec, RetentionSpec
from streamwarden.savepoints import catalog
from streamwarden.savepoints.retention import expired, fates
from tests.unit.savepoints.test_catalog import JOB, NOW, made, opened

pytestmark = pytest.mark.unit


def test_each_savepoint_has_a_fate_in_words(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    for name in ("s1", "s2", "s3", "s4"):
        made(workspace, name, verdict="verified")
    catalog.label(workspace, JOB, "s1", "keep-me")
    found = catalog.savepoints(workspace, JOB)
    fate = fates(found, RetentionSpec(manual=KeepSpec(count=2), periodic=KeepSpec(count=2)), NOW)
    assert "keep-me" in fate["s1"].why and not fate["s1"].removed
    assert "newest verified" in fate["s4"].why
    assert fate["s2"].removed and "beyond the newest 2" in fate["s2"].why
    assert fate["s3"].why.startswith("stays until 1 newer")


def test_age_names_the_time_and_then_removes(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    made(workspace, "s1", verdict="verified")
    made(workspace, "s2", verdict="verified")
    found = catalog.savepoints(workspace, JOB)
    policy = RetentionSpec(manual=KeepSpec(age=timedelta(hours=1)), periodic=KeepSpec(age=timedelta(hours=1)))
    taken = next(one for one in found if one.id == "s1").summary.taken_at
    before = fates(found, policy, taken + timedelta(minutes=59))["s1"]
    assert before.at == taken + timedelta(hours=1) and f"{before.at:%H:%M} UTC" in before.why and not before.removed
    after = taken + timedelta(minutes=61)
    assert fates(found, policy, after)["s1"].removed
    # What is said is what is done.
    assert [one.id for one in expired(found, policy, after)] == ["s1"]


def test_without_limits_it_stays_until_a_person_deletes_it(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    made(workspace, "s1", verdict="unverified")
    (fate,) = fates(
        catalog.savepoints(workspace, JOB), RetentionSpec(periodic=KeepSpec(), manual=KeepSpec()), NOW
    ).values()
    assert fate.why == "stays until a person deletes it"
