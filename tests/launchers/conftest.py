from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY, ROOT
from tests.launchers.hosts import HostPlace, HostsOnS3
from tests.launchers.kubernetes.place import KubernetesPlace
from tests.launchers.local import LocalPlace
from tests.launchers.place import LauncherPlace
from tests.launchers.standalone import StandalonePlace
from tests.launchers.yarn import YarnPlace
from tests.s3.conftest import given_server, s3, server, session_server

__all__ = ["given_server", "place", "s3", "server", "session_server"]

PLACES: dict[str, type[LauncherPlace]] = {
    "local": LocalPlace,
    "host": HostPlace,
    "yarn": YarnPlace,
    "standalone": StandalonePlace,
    "standalone-s3": StandalonePlace,
    "host-s3": HostsOnS3,
    "kubernetes-s3": KubernetesPlace,
}
"""The kinds of place that the contract holds for. One whose name ends with -s3 keeps all but its logs in a bucket."""

ONLY = "STREAMWARDEN_TEST_LAUNCHERS"
"""Names of places, or their beginnings, separated by commas; default all."""


def chosen() -> list[str]:
    only = [name for name in os.environ.get(ONLY, "").split(",") if name]
    return [name for name in PLACES if not only or name in only or name.split("-")[0] in only]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames and not any(
        "kind" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("kind", chosen())


@pytest.fixture
def place(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LauncherPlace]:
    """A place of a kind, open. A test for one kind alone parametrises `kind` itself."""
    if kind not in chosen():
        pytest.skip(f"{ONLY} leaves {kind} out")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    # Drivers are in UTC, wherever they are started.
    monkeypatch.setenv("TZ", "America/New_York")
    store = {}
    if kind.endswith("-s3"):
        bucket = request.getfixturevalue("s3").location
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(bucket.endpoint))
        store = {"s3": {"bucket": bucket.bucket, "prefix": bucket.prefix}}
    made = PLACES[kind](tmp_path, store)
    try:
        made.open()
        yield made
    finally:
        made.hold.unlink(missing_ok=True)
        made.close()
        for log in (tmp_path / ROOT).glob("logs/*/*/driver.log"):
            # pytest shows it with a test that failed.
            sys.stdout.write(f"--- {log}\n{log.read_text()[-4000:]}\n")
