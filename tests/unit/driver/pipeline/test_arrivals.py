"""When landed files are planned ahead of the trigger."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from streamwarden.driver.pipeline.arrivals import Arrivals
from tests.batches import made_batch

pytestmark = pytest.mark.unit


class _Planner:
    unsettled = looks_often = False

    def open(self) -> None:
        pass

    def look(self, *, rest: bool) -> int:
        return int(rest)


def test_only_a_batch_that_overran_its_interval_is_followed_at_once() -> None:
    woken = threading.Event()
    arrivals = Arrivals(cast(Any, _Planner()), 60.0, woken.set)
    arrivals.start()
    try:
        arrivals.batch_ended(made_batch(1, duration_ms=59_000))
        assert not woken.wait(0.3)
        arrivals.batch_ended(made_batch(2, duration_ms=61_000))
        assert woken.wait(10)
    finally:
        arrivals.close()
