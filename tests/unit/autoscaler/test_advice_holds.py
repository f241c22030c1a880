"""Which of a job's past operations hold the advisor back: on documents, without a driver."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from streamwarden.autoscaler.advise import _limits, holds_back
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation, Step
from streamwarden.model.record import ErrorInfo, utc_now
from tests.unit.operations.test_rescale_plan import Place
from tests.unit.operations.test_spec_diff import JOB, deployed, spec, write

pytestmark = pytest.mark.unit

PREPARED = ("precheck", "start Spark", "pre-rescale savepoint", "copy", "digest before")
SWITCHED = (*PREPARED, "repartition", "digest after", "follow", "stop", "follow to the end", "switch", "start")
TARGET = {"partitions": 8}


class Past:
    """A job whose operations have ended a minute ago."""

    def __init__(self, folder: Path, **advisor: Any) -> None:
        self.place = Place(folder)
        fields = {"advisor": {"apply": True, **advisor}}
        write(self.place.config, **fields)
        deployed(self.place.workspace, spec(**fields))
        self.count = 0

    def operation(
        self,
        steps: tuple[str, ...],
        state: Literal["done", "failed", "rolled back", "interrupted"] = "failed",
        code: str | None = None,
        *,
        kind: Literal["restore", "rescale"] = "rescale",
    ) -> None:
        self.count += 1
        at = utc_now() - timedelta(minutes=1)
        found = Operation(
            id=f"o{self.count}",
            kind=kind,
            job=JOB,
            by="somebody",
            params={},
            # As precheck leaves it, once it has let the target pass.
            plan={"to": {"partitions": 8, "cores": 1, "memory": "1g"}} if len(steps) > 1 else {},
            state=state,
            started_at=at,
            ended_at=at,
            seen_at=at,
            process=None,
            steps=[Step(name=name, started_at=at, ended_at=at) for name in steps],
            error=ErrorInfo.of(StreamwardenError(code, "for the test")) if code else None,
        )
        self.place.documents.past_operation(found.id).write(found)

    def holds(self) -> list[str]:
        """In short."""
        words = {"cooling down": "cool-down", "in 24 hours": "per day", "to the same": "target"}
        found = holds_back(self.place.workspace, JOB, TARGET)
        assert all(any(word in line for word in words) for line in found), found
        return [short for line in found for word, short in words.items() if word in line]


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path, per_day=1)


def test_a_rescale_that_was_refused_holds_nothing_back(past: Past) -> None:
    past.operation(("precheck",), code="RESCALE_NO_SPACE")
    past.operation(("precheck", "precheck"), code="RESCALE_NOT_HEALTHY")
    assert past.holds() == []


def test_one_that_never_stopped_the_job_is_waited_out_and_is_none_of_the_days(past: Past) -> None:
    past.operation(PREPARED, code="RESCALE_STATE_DIFFERS")
    assert past.holds() == ["cool-down", "target"]


def test_one_that_stopped_the_job_counts_however_it_ended(past: Past) -> None:
    past.operation(SWITCHED, "done")
    assert past.holds() == ["per day", "cool-down"]


@pytest.mark.parametrize("code", ["OPERATION_CANCELLED", "S3_UNREACHABLE", "RESCALE_NOT_HEALTHY"])
def test_what_was_cut_off_says_nothing_of_its_target(past: Past, code: str) -> None:
    past.operation(PREPARED, code=code)
    assert past.holds() == ["cool-down"]


def test_one_that_was_cancelled_before_it_went_back_neither(past: Past) -> None:
    past.operation((*SWITCHED, "roll back"), "rolled back", "OPERATION_CANCELLED")
    assert past.holds() == ["per day", "cool-down"]


def test_who_cancels_one_at_its_first_look_is_not_asked_again_at_once(past: Past) -> None:
    past.operation(("precheck",), code="OPERATION_CANCELLED")
    assert past.holds() == ["cool-down"]


def test_behind_one_that_was_cut_off_one_that_went_back_still_counts(past: Past) -> None:
    past.operation((*SWITCHED, "roll back"), "rolled back", "OUT_OF_MEMORY")
    past.operation(PREPARED, code="OPERATION_CANCELLED")
    assert past.holds() == ["per day", "cool-down", "target"]


def test_a_restore_is_waited_out(past: Past) -> None:
    past.operation(("precheck",), kind="restore", code="SAVEPOINT_NOT_FOUND")
    assert past.holds() == ["cool-down"]


def test_keyed_state_limits_the_partitions() -> None:
    fields: dict[str, Any] = {"state": {"partitions": 2, "buckets": 64}}
    assert _limits(spec(**fields)).max_partitions == 8
    assert _limits(spec(**fields, advisor={"max_partitions": 4})).max_partitions == 4
    assert _limits(spec(**fields, advisor={"min_partitions": 16})).min_partitions == 8
