"""A canary in every secret that the project knows: no error, document, page, log, metric or command line has one."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.driver.export import open_export
from streamwarden.driver.logs import configure_logging
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.driver.schema_registry import read_subject
from streamwarden.errors import StreamwardenError
from streamwarden.model.kubernetes_spec import KubernetesSpec
from streamwarden.model.operation import Step
from streamwarden.model.profile import LogSpec, MetricsSpec, PrometheusSpec, S3Spec
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import DriverState, Heartbeat
from streamwarden.quality.lineage_events import error_facets
from streamwarden.redaction import HIDDEN, is_secret_name, redacted
from streamwarden.runtime.launchers import local
from streamwarden.runtime.processes import current_process
from streamwarden.serving.redis import RedisStore
from streamwarden.store.config import load_job, load_profile
from streamwarden.store.workspace import open_workspace
from streamwarden.supervision.health_rules import RULES, Finding, Health, Level
from tests.batches import make_place
from tests.canaries import CANARIES, found_in, in_files, leak, value_of
from tests.unit.store.test_names import COMMANDS, arguments, named

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in CANARIES.items():
        monkeypatch.setenv(name, value_of(name, secret))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")


@pytest.mark.parametrize("name", CANARIES)
def test_each_secret_is_hidden_from_each_kind_of_text(name: str, tmp_path: Path) -> None:
    """As a client's message would have it: whole, or the secret alone."""
    for said in (os.environ[name], CANARIES[name]):
        text = f"the client says: {said!r} is refused"
        error = StreamwardenError("S3_REFUSED", text)
        try:
            raise ValueError(text)
        except ValueError:
            info = ErrorInfo.of(error, traceback.format_exc())
        assert HIDDEN in info.what and HIDDEN in info.traceback
        for told in (str(error), repr(error), info.model_dump_json(), redacted(text)):
            assert found_in(told) == []


def test_what_a_driver_and_a_step_say_of_themselves_has_no_secret() -> None:
    """A failed try's reason is shown by `status` and pages, elsewhere than where the secret is known."""
    now = utc_now()
    beat = Heartbeat(
        incarnation="i",
        at=now,
        started_at=now,
        state=DriverState.RETRYING,
        process=current_process(),
        reason=f"try 1 failed: {leak()}",
        notes=[leak()],
    )
    step = Step(name="digests", started_at=now)
    step.detail = f"not compared: {leak()}"
    for told in (beat.model_dump_json(), step.model_dump_json()):
        assert HIDDEN in told and found_in(told) == []


@pytest.mark.parametrize("kind", ["text", "json"])
def test_no_log_of_a_driver_has_a_secret(kind: Any, tmp_path: Path) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    configure_logging(tmp_path, "trips", "i", LogSpec(format=kind))
    try:
        for name in CANARIES:
            try:
                raise ValueError(os.environ[name])
            except ValueError:
                logging.getLogger("a.client").warning("it fails with %s", CANARIES[name], exc_info=True)
    finally:
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    text = (tmp_path / "driver.log").read_text()
    assert text.count(HIDDEN) >= 2 * len(CANARIES) and "Traceback" in text
    assert in_files(tmp_path) == {}


def test_clients_that_reach_nobody_tell_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"no way to {os.environ['STREAMWARDEN_SCHEMA_REGISTRY_URL']}", request=request)

    s3 = {"bucket": "bucket", "endpoint": "http://127.0.0.1:1"}
    bucket = make_place(tmp_path, s3=S3Spec(**s3).model_dump())
    bucket.files.patience_s = 0  # type: ignore[attr-defined]
    redis = RedisStore(os.environ["STREAMWARDEN_REDIS_URL"], "t", None)
    calls: list[Callable[[], object]] = [
        lambda: bucket.storage.read("control/trips/lease.json"),
        lambda: bucket.files.folders("control"),
        redis.position,
        lambda: read_subject("http://127.0.0.1:1", "s", transport=httpx.MockTransport(refuse)),
    ]
    for call in calls:
        with pytest.raises(StreamwardenError) as error:
            call()
        assert found_in(str(error.value)) == []


@pytest.mark.parametrize("value", ["redis://:{}", "redis://u:{}:x@h", "redis://h:{}/0", "{}", "http://{}"])
def test_an_address_with_a_slip_is_not_shown(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamwarden.model.spec import ServeSpec
    from streamwarden.serving.client import open_store

    secret = "canary-of-an-address"
    for name in ("STREAMWARDEN_REDIS_URL", "STREAMWARDEN_SCHEMA_REGISTRY_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, value.format(secret))
    workspace = make_place(tmp_path)
    make_place(tmp_path / "s3", s3={"bucket": "bucket", "endpoint": "http://127.0.0.1:1"})
    written = tmp_path / "s3/config/profiles/test.yaml"
    written.write_text(yaml.safe_dump({"name": "test", "root": "root", "s3": {"bucket": "bucket"}}))
    transport = httpx.MockTransport(lambda _: httpx.Response(500))
    for call in (
        lambda: open_store(workspace, "t", ServeSpec(kind="redis"), writes=True),
        lambda: read_subject("http://127.0.0.1:1", "s", transport=transport),
        lambda: open_workspace("test", config=tmp_path / "s3/config"),
    ):
        try:
            call()
        except StreamwardenError as error:
            assert secret not in str(error) or value == "http://{}", f"{error}"


def test_an_event_of_lineage_has_none() -> None:
    (facet,) = error_facets(OSError(leak())).values()
    assert HIDDEN in facet.message and found_in(facet.message) == []  # type: ignore[attr-defined]


def test_no_yaml_has_a_secret_for_spark(tmp_path: Path) -> None:
    workspace = make_place(tmp_path)
    path = workspace.config / "profiles/test.yaml"
    plain = yaml.safe_load(path.read_text())
    for name, value in (
        ("spark.hadoop.fs.s3a.secret.key", "canary"),
        ("spark.hadoop.fs.s3a.access.key", "canary"),
        ("spark.ssl.keyPassword", "canary"),
        ("spark.kafka.sasl.jaas.config", "canary"),
        ("spark.authenticate.secret", "canary"),
        ("spark.jars", "http://user:canary@repository/x.jar"),
    ):
        path.write_text(yaml.safe_dump({**plain, "spark": {name: value}}))
        with pytest.raises(StreamwardenError, match=name) as error:
            load_profile("test", config=workspace.config)
        assert "canary" not in str(error.value)
        job = {
            "name": "trips", "module": "m", "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": "t", "mode": "append"}], "spark": {name: value},
        }  # fmt: skip
        (workspace.config / "jobs/trips.yaml").write_text(yaml.safe_dump(job))
        with pytest.raises(StreamwardenError, match=name) as error:
            load_job("trips", config=workspace.config)
        assert "canary" not in str(error.value)
    for name in (
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.kubernetes.authenticate.oauthTokenFile",
        "AWS_ACCESS_KEY_ID",
    ):
        assert not is_secret_name(name)


def test_no_error_of_configuration_shows_a_value(tmp_path: Path) -> None:
    workspace = make_place(tmp_path)
    path = workspace.config / "jobs/trips.yaml"
    for text in ("name: trips\npassword: canary-x\n", "name: [canary-x\n", "a: !canary-x b\n", "name: *canary-x\n",
                 "name: trips\nsource: canary-x\nsinks: canary-x\n", "canary-x", "\x01canary-x"):  # fmt: skip
        path.write_text(text)
        with pytest.raises(StreamwardenError) as error:
            load_job("trips", config=workspace.config)
        assert "canary-x" not in str(error.value)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_shows_one(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if words[-1] in ("watch", "supervise"):
        pytest.skip("runs without an end")
    workspace = make_place(tmp_path / "place")
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(workspace.config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    # Some write files where they are called.
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app, [*words, *arguments(COMMANDS[words], next(iter(named(COMMANDS[words])), None), "trips")]
    )
    assert found_in(done.output + str(done.exception)) == []
    assert in_files(tmp_path) == {}


def test_no_metric_and_no_endpoint_has_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = open_export(MetricsSpec(prometheus=PrometheusSpec()), "trips", "i")
    assert made is not None
    try:
        made.provider.get_meter("m").create_counter("c").add(1, {"job": "trips"})
        text = httpx.get(f"http://{made.address}/metrics", trust_env=False).text
        made.provider.force_flush(2000)
    finally:
        made.close(3)
    assert "c_total" in text and found_in(text) == []
    # These go to driver.log, where secrets are hidden.
    assert found_in(redacted(caplog.text)) == []


def test_no_label_of_a_failing_driver_has_one() -> None:
    made = open_export(MetricsSpec(prometheus=PrometheusSpec()), "trips", "i")
    assert made is not None
    health = Health(tuple(Finding(rule, Level.CRITICAL, leak(), 2, 1) for rule in RULES))
    view = DriverView(DriverState.RUNNING, generation=1, failures=3, idle=False)
    try:
        metrics = DriverMetrics(made.provider, "trips", lambda: view, lambda: health)
        metrics.failed_try()
        text = httpx.get(f"http://{made.address}/metrics", trust_env=False).text
    finally:
        made.close(3)
    assert 'streamwarden_health{job="trips",rule="restarts"} 2.0' in text and found_in(text) == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The command lines that are started."""
    found: list[list[str]] = []

    class Ended:
        pid, returncode = 1, 1

        def __init__(self, command: list[str], **_: Any) -> None:
            found.append(command)

    monkeypatch.setattr(subprocess, "Popen", Ended)
    yield found


def test_no_command_line_of_a_driver_has_one(tmp_path: Path, started: list[list[str]]) -> None:
    local.driver_process(make_place(tmp_path), "trips", "i", environment=os.environ)
    (command,) = started
    assert found_in(" ".join(command)) == []


def test_no_model_has_a_field_for_a_secret() -> None:
    """Documents and YAML: a field for one would be shown by the pages."""
    import streamwarden.model as package

    for path in Path(package.__file__).parent.glob("*.py"):
        module = __import__(f"streamwarden.model.{path.stem}", fromlist=["x"])
        for model in vars(module).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                fields = {name for name in model.model_fields if is_secret_name(name)}
                # Names of Kubernetes' Secrets and of their keys, which only the kubelet resolves.
                assert fields - ({"secrets"} if model is KubernetesSpec else set()) == set(), model


def test_a_port_of_nobody_is_used_here() -> None:
    """The tests above reach for port 1 of this machine: nothing may listen there."""
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", 1)) != 0
