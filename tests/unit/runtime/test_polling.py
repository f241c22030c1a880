from __future__ import annotations

import pytest

from streamwarden.runtime import polling
from streamwarden.runtime.polling import Deadline

pytestmark = pytest.mark.unit


def test_a_loop_looks_once_more_after_its_last_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(polling.time, "monotonic", lambda: now)
    monkeypatch.setattr(polling.time, "sleep", sleep)
    deadline, looks = Deadline(1.0), 1
    while deadline.pause(0.4):
        looks += 1
    assert looks == 4 and deadline.passed and now == pytest.approx(101.2)
    assert not Deadline(0).pause(5) and now == pytest.approx(101.2)
