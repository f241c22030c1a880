"""A canary in every secret of a real driver: none is in a file of the root, a command line or a metric."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import psutil
import pytest

from streamwarden.operations.deploy import deploy_job
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase
from tests.canaries import CANARIES, found_in, in_files, value_of
from tests.integration.conftest import BY, Place

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, secret in CANARIES.items():
        monkeypatch.setenv(name, value_of(name, secret))
    yield


def test_no_file_and_no_command_line_of_a_driver_has_a_secret(place: Place) -> None:
    place.numbers()
    place.profile(metrics={"prometheus": {}})
    place.land("0")
    deploy_job(place.workspace, "numbers", by=BY)
    seen = place.wait("numbers", lambda now: bool(now.heartbeat and now.heartbeat.batch == 0), "the first batch")
    assert seen.heartbeat is not None
    driver = psutil.Process(seen.heartbeat.process.pid)
    started = [driver, *driver.children(recursive=True)]
    lines = [" ".join(one.cmdline()) for one in started]
    assert any("java" in line for line in lines)
    assert {line[:80]: found for line in lines if (found := found_in(line))} == {}
    with urllib.request.urlopen(f"http://{seen.heartbeat.metrics}/metrics", timeout=10) as answer:
        assert found_in(answer.read().decode()) == []
    # The collector cannot be reached: the exporter has complained by then.
    end = driver_control.stop(place.workspace, "numbers", by=BY, timeout=120)
    assert end.phase is Phase.STOPPED
    assert (place.workspace.log_dir("numbers", seen.incarnation or "") / "driver.log").stat().st_size > 0
    assert in_files(place.workspace.root) == {}
