from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from streamwarden.storage import S3Location
from streamwarden.storage.s3_client import make_client
from tests.integration.conftest import REPOSITORY, ROOT
from tests.integration.conftest import Place as Jobs
from tests.s3.proxy import Proxy
from tests.s3.server import PROGRAM, REGION, S3Server


@dataclass(frozen=True)
class Place:
    """A bucket of a test's own, and who may use it."""

    location: S3Location
    access_key: str
    secret_key: str

    def client(self) -> Any:
        """Return a client of the test's own, to look behind the back of what is tested."""
        return boto3.session.Session(self.access_key, self.secret_key).client(
            "s3", endpoint_url=self.location.endpoint, region_name=self.location.region
        )


@pytest.fixture(scope="session")
def given_server() -> S3Location | None:
    """The server that the environment names, if it names one."""
    endpoint = os.environ.get("S3_ENDPOINT")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or REGION
    return S3Location("", endpoint=endpoint, region=region) if endpoint else None


@pytest.fixture(scope="session")
def session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if not PROGRAM.is_file():
        if os.environ.get("S3_ENDPOINT"):
            pytest.skip("this test stops its server, which is not done to the one that S3_ENDPOINT names")
        pytest.fail(f"no S3 server: {PROGRAM} is not built. Run `make s3-server`, or set S3_ENDPOINT and AWS_*.")
    made = S3Server(tmp_path_factory.mktemp("s3"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def server(session_server: S3Server) -> Iterator[S3Server]:
    """A server that the test may stop and start; it runs again afterwards."""
    yield session_server
    if not session_server.runs:
        session_server.start()


@pytest.fixture
def s3(
    request: pytest.FixtureRequest, given_server: S3Location | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Place:
    """A fresh bucket, with credentials in the environment, of this process and of those that it starts."""
    bucket = f"test-{secrets.token_hex(6)}"
    if given_server is not None and "server" not in request.fixturenames:
        keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        place = Place(replace(given_server, bucket=bucket, prefix="some/place"), *keys)
    else:
        server = request.getfixturevalue("server")
        location = S3Location(bucket, prefix="some/place", endpoint=server.endpoint, region=REGION)
        place = Place(location, server.access_key, server.secret_key)
    make_client.cache_clear()
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", place.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.secret_key)
    # Nothing of the machine's own: neither files of a home folder, nor a role that a cloud machine has.
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place.client().create_bucket(Bucket=bucket)
    return place


@pytest.fixture
def proxy(s3: Place) -> Iterator[Proxy]:
    """A proxy before the server, without trouble at first."""
    assert s3.location.endpoint is not None
    with Proxy(s3.location.endpoint) as made:
        yield made


@pytest.fixture
def through_proxy(s3: Place, proxy: Proxy) -> S3Location:
    return replace(s3.location, endpoint=proxy.endpoint)


@pytest.fixture
def place(tmp_path: Path, s3: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(s3.location.endpoint))
    made = Jobs(tmp_path)
    made.profile(
        s3={"bucket": s3.location.bucket, "prefix": s3.location.prefix},
        # So that the batch fails within a test's patience, and the driver's own tries are what saves it.
        spark={"spark.hadoop.fs.s3a.retry.limit": "1"},
    )
    yield made
    made.kill_all()
    for log in (tmp_path / ROOT).glob("logs/*/*/driver.log"):
        sys.stdout.write(f"--- {log}\n{log.read_text()[-6000:]}\n")
