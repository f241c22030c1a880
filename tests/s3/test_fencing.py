"""A driver with all that it has on S3 is paused past its lease, wakes, and writes nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamwarden.formats.delta_log import DeltaLog
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.processes import kill
from streamwarden.supervision import driver_control, observe
from tests.integration.conftest import BY, Place
from tests.integration.test_fencing import (
    LEASE,
    at,
    ended,
    files,
    freeze,
    lives_elsewhere,
    pid_of,
    thaw,
    wakes_in_another_generation,
)
from tests.s3.conftest import Place as S3Place
from tests.s3.proxy import Hold, Proxy

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.slow]


@pytest.mark.long
def test_paused_before_a_commit_of_an_earlier_generation(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence is a commit by conditional PUT, and Delta heeds it there as on disk."""
    wakes_in_another_generation(place, tmp_path / "paused", monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize(
    "entry",
    [
        "tables/numbers/_delta_log/{:020}.json",
        "checkpoints/numbers/g000001/offsets/2",
        "checkpoints/numbers/g000001/sources/0/2",
    ],
)
def test_paused_in_a_request_it_writes_over_nothing(
    place: Place, s3: S3Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """The PUT is sent and arrives when somebody else has run the batch: with another file, as one has landed since."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    place.profile(lease=LEASE, s3={"bucket": s3.location.bucket, "prefix": s3.location.prefix})
    place.numbers()
    place.land("0.txt")
    place.land("1.txt")
    first = deploy_job(place.workspace, "numbers", by=BY).incarnation
    place.wait("numbers", lambda seen: at(seen, 1), "batch 1")
    entry = entry.format(DeltaLog(place.workspace.files, "numbers").latest + 1)
    hold = proxy.hold = Hold(f"PUT .*/{entry}")
    place.land("2.txt")
    assert hold.reached.wait(120), f"a PUT of {entry}"
    frozen = freeze(pid_of(observe.observe(place.workspace, "numbers")))
    place.land("3.txt")
    second = lives_elsewhere(place)
    place.wait("numbers", lambda seen: seen.incarnation == second and len(files(place)) == 4, "all files")

    def content() -> bytes:
        key = f"{s3.location.prefix}/{entry}"
        return bytes(s3.client().get_object(Bucket=s3.location.bucket, Key=key)["Body"].read())

    written = content()
    hold.release()
    assert hold.answered.wait(60)
    thaw(frozen)
    ended(place, first)
    assert hold.status == 412 and content() == written
    # Who goes on from there reads each file once.
    assert kill(observe.observe(place.workspace, "numbers").heartbeat.process)  # type: ignore[union-attr]
    driver_control.start(place.workspace, "numbers", by=BY)
    place.land("4.txt")
    place.wait("numbers", lambda _: "4.txt" in files(place), "a file after that")
    assert files(place) == [f"{number}.txt" for number in range(5)]
