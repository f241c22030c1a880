"""Drivers as pods: what a launcher concludes from the API server's answers, and what it submits."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.driver import submission
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import Desired, DriverState, Heartbeat, Launch
from streamwarden.runtime.launchers import kubernetes
from streamwarden.runtime.launchers.interface import StartState
from streamwarden.runtime.launchers.kubernetes import KubernetesLauncher, pod_name
from streamwarden.runtime.processes import current_process
from streamwarden.spark.jars import jar_dir, spark_folder
from streamwarden.store.config import load_profile
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe
from tests.unit.driver.made_spark import MadeSpark
from tests.unit.operations.test_spec_diff import spec

pytestmark = pytest.mark.unit

JOB = "zone_windows"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
BLOCK = {"namespace": "streams", "image": "streamwarden:1", "driver_template": "pod.yaml"}


class ApiServer:
    """A server that knows pods by name. It answers as Kubernetes does, as far as a launcher asks."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.asked: list[str] = []
        self.refusal: tuple[int, str] | None = None
        self.node_answers = True
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_DELETE(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer("DELETE")

            def _answer(self, verb: str) -> None:
                status, content = server.answer(verb, self.path)
                body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, verb: str, path: str) -> tuple[int, Any]:
        self.asked.append(f"{verb} {path}")
        if self.refusal is not None:
            return self.refusal[0], {"kind": "Status", "message": self.refusal[1]}
        address = urllib.parse.urlsplit(path)
        parts = address.path.removeprefix("/api/v1/namespaces/streams/pods").strip("/").split("/")
        if parts == [""]:
            return 200, {"kind": "PodList", "metadata": {}, "items": list(self.pods.values())}
        if parts[0] not in self.pods:
            return 404, {"kind": "Status", "message": f'pods "{parts[0]}" not found'}
        if parts[1:] == ["log"]:
            lines = int(urllib.parse.parse_qs(address.query)["tailLines"][0])
            return 200, "".join(self.logs[parts[0]].splitlines(keepends=True)[-lines:])
        pod = self.pods[parts[0]]
        if verb == "DELETE" and self.node_answers:
            del self.pods[parts[0]]
        return 200, pod

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    yield made
    made.close()


@pytest.fixture
def config(tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    login = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t0ken"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(login))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    write(tmp_path / "config", server.address)
    return tmp_path / "config"


def write(config: Path, server: str, **fields: Any) -> None:
    content = {
        "name": "test",
        "root": str(config.parent / "root"),
        "launcher": "kubernetes",
        "master": f"k8s://{server}",
        "kubernetes": BLOCK,
        "same_image": True,
        **fields,
    }
    kept = {name: value for name, value in content.items() if value is not None}
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump(kept))


@pytest.fixture
def workspace(config: Path) -> Workspace:
    return open_workspace("test", config=config)


def launched(workspace: Workspace, *, ago: float = 0, ran: bool = False) -> str:
    incarnation = new_id()
    documents = JobDocuments(workspace.storage, JOB)
    at = utc_now() - timedelta(seconds=ago)
    documents.launch(incarnation).write(Launch(incarnation=incarnation, at=at, by="test", reason="", digest=""))
    if ran:
        documents.heartbeat(incarnation).write(
            Heartbeat(
                incarnation=incarnation, at=at, started_at=at, state=DriverState.RUNNING, process=current_process()
            )
        )
    return incarnation


def pod(name: str, phase: str, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "streams", "creationTimestamp": AT.isoformat(), "labels": {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": phase, **status},
    }


def container(**state: Any) -> dict[str, Any]:
    one = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"containerStatuses": [one]}


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


WAITING = [
    (condition("PodScheduled", "False", "Unschedulable", "0/3 nodes: insufficient cpu"), "insufficient cpu"),
    (container(waiting={"reason": "ImagePullBackOff", "message": "not found"}), "ImagePullBackOff: not found"),
    (container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "s3"'}), 'secret "s3"'),
    (container(waiting={"reason": "ContainerCreating"}), "waits for the scheduler"),
    ({}, "waits for the scheduler"),
]


@pytest.mark.parametrize(("status", "reason"), WAITING)
def test_a_pending_pod_waits_for_whatever_it_says(
    workspace: Workspace, server: ApiServer, status: dict[str, Any], reason: str
) -> None:
    incarnation = launched(workspace, ago=3600)
    name = pod_name(JOB, incarnation)
    server.pods[name] = pod(name, "Pending", **status)
    found = KubernetesLauncher(workspace).find(JOB, incarnation)
    assert found.state is StartState.WAITING and reason in found.reason and found.since == AT


def test_a_running_pod_is_started_since_its_containers_start(workspace: Workspace, server: ApiServer) -> None:
    incarnation = launched(workspace)
    name = pod_name(JOB, incarnation)
    since = AT + timedelta(minutes=5)
    server.pods[name] = pod(name, "Running", **container(running={"startedAt": since.isoformat()}))
    found = KubernetesLauncher(workspace).find(JOB, incarnation)
    assert (found.state, found.since) == (StartState.STARTED, since)
    # Its node does not answer: it may run.
    server.pods[name] = pod(name, "Unknown", reason="NodeLost")
    assert KubernetesLauncher(workspace).find(JOB, incarnation).state is StartState.UNKNOWN


def test_a_pod_that_is_deleted_before_it_ran_does_not_wait_for_a_node(workspace: Workspace, server: ApiServer) -> None:
    deployed(workspace)
    incarnation = launched(workspace, ago=3600)
    name = pod_name(JOB, incarnation)
    server.pods[name] = pod(name, "Pending")
    server.pods[name]["metadata"]["deletionTimestamp"] = AT.isoformat()
    found = KubernetesLauncher(workspace).find(JOB, incarnation)
    assert found.state is StartState.UNKNOWN and "is being deleted" in found.reason
    # Its supervisor restarts it, as any driver that did not come to run.
    assert observe(workspace, JOB).phase is Phase.SILENT


def test_a_driver_that_cannot_be_ended_is_an_error_after_the_time_out(
    workspace: Workspace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(workspace)
    name = pod_name(JOB, launched(workspace))
    server.pods[name] = pod(name, "Pending", **condition("PodScheduled", "False", "Unschedulable", "no cpu"))
    server.node_answers = False
    monkeypatch.setattr(kubernetes, "KILL_S", 0.3)
    with pytest.raises(StreamwardenError, match=r"STOP_TIMED_OUT.*no cpu"):
        driver_control.end_driver(workspace, JOB, by="test", reason="for the test", timeout=1)


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return container(terminated={"exitCode": code, "reason": reason})


ENDINGS = [
    (ended(137, "OOMKilled"), "OUT_OF_MEMORY", "memory limit"),
    (ended(3), "OUT_OF_MEMORY", "its JVM ended with exit code 3"),
    ({"reason": "Evicted", "message": "low on memory"}, "DRIVER_DIED", "Evicted: low on memory"),
    (condition("DisruptionTarget", "True", "PreemptionByScheduler", "for x"), "DRIVER_DIED", "PreemptionByScheduler"),
    (ended(1), "DRIVER_DIED", "exit code 1"),
    ({}, "DRIVER_DIED", "Failed"),
]


@pytest.mark.parametrize(("status", "code", "reason"), ENDINGS)
def test_a_failed_pod_tells_why(
    workspace: Workspace, server: ApiServer, status: dict[str, Any], code: str, reason: str
) -> None:
    incarnation = launched(workspace, ran=True)
    name = pod_name(JOB, incarnation)
    server.pods[name] = pod(name, "Failed", **status)
    found = KubernetesLauncher(workspace).find(JOB, incarnation)
    assert found.state is StartState.ENDED and reason in found.reason
    assert found.error is not None and found.error.code == code and found.error.retryable


def test_a_pod_that_is_not_there(workspace: Workspace) -> None:
    launcher = KubernetesLauncher(workspace)
    fresh, old, ran = launched(workspace), launched(workspace, ago=300), launched(workspace, ran=True)
    # Its submission may still run.
    assert launcher.find(JOB, fresh).state is StartState.WAITING
    for incarnation, code in ((old, "DRIVER_DID_NOT_START"), (ran, "DRIVER_DIED")):
        found = launcher.find(JOB, incarnation)
        assert found.state is StartState.ENDED and found.error is not None and found.error.code == code


def deployed(workspace: Workspace) -> None:
    JobDocuments(workspace.storage, JOB).desired.write(
        Desired(
            job=JOB, state="running", spec=spec(), digest="", profile="test", updated_at=utc_now(), updated_by="test"
        )
    )


def test_a_stop_during_the_submission_withdraws_the_pod_when_it_is_there(
    workspace: Workspace, server: ApiServer
) -> None:
    deployed(workspace)
    name = pod_name(JOB, launched(workspace))

    def accept() -> None:
        while not any(asked.startswith("DELETE") for asked in server.asked):
            time.sleep(0.01)
        server.pods[name] = pod(name, "Pending")

    threading.Thread(target=accept, daemon=True).start()
    assert driver_control.stop(workspace, JOB, by="test", timeout=10).phase is Phase.STOPPED
    assert server.pods == {}


def test_a_stop_does_not_withdraw_a_driver_that_was_started_since(workspace: Workspace, server: ApiServer) -> None:
    deployed(workspace)
    name = pod_name(JOB, launched(workspace))
    server.pods[name] = pod(name, "Pending")
    with pytest.raises(StreamwardenError) as raised:
        driver_control.await_stop(workspace, JOB, timeout=0.5)
    assert raised.value.code == "STOP_TIMED_OUT"
    assert name in server.pods


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_api_server_that_refuses_leaves_it_unknown(workspace: Workspace, server: ApiServer, status: int) -> None:
    incarnation = launched(workspace, ago=3600)
    server.refusal = (status, "pods is forbidden")
    launcher = KubernetesLauncher(workspace)
    found = launcher.find(JOB, incarnation)
    assert found.state is StartState.UNKNOWN and "pods is forbidden" in found.reason
    assert not launcher.kill(JOB, incarnation) and launcher.logs(JOB, incarnation, 10) is None
    with pytest.raises(StreamwardenError, match="pods is forbidden") as raised:
        start(workspace, incarnation)
    assert raised.value.code == ("SUBMISSION_REFUSED" if status < 429 else "KUBERNETES_UNREACHABLE")


def test_an_api_server_that_is_gone_leaves_it_unknown(workspace: Workspace, server: ApiServer) -> None:
    incarnation = launched(workspace, ago=3600)
    server.close()
    launcher = KubernetesLauncher(workspace)
    found = launcher.find(JOB, incarnation)
    assert found.state is StartState.UNKNOWN and "Connection refused" in found.reason
    assert not launcher.kill(JOB, incarnation) and launcher.logs(JOB, incarnation, 10) is None
    with pytest.raises(StreamwardenError) as raised:
        start(workspace, incarnation)
    assert raised.value.code == "KUBERNETES_UNREACHABLE"


def test_a_kill_waits_until_the_node_confirms_it(
    workspace: Workspace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamwarden.runtime.launchers.kubernetes.KILL_S", 0.5)
    launcher, incarnation = KubernetesLauncher(workspace), launched(workspace, ran=True)
    name = pod_name(JOB, incarnation)
    assert not launcher.kill(JOB, incarnation), "there is no pod"
    server.pods[name] = pod(name, "Running")
    server.node_answers = False
    assert not launcher.kill(JOB, incarnation), "its node is gone"
    server.node_answers = True
    assert launcher.kill(JOB, incarnation)
    assert any(asked.startswith("DELETE") and "gracePeriodSeconds=1" in asked for asked in server.asked)


def test_logs_are_what_the_pod_printed(workspace: Workspace, server: ApiServer) -> None:
    launcher, incarnation = KubernetesLauncher(workspace), launched(workspace)
    name = pod_name(JOB, incarnation)
    assert launcher.logs(JOB, incarnation, 2) is None
    server.pods[name], server.logs[name] = pod(name, "Running"), "a\nb\nc\n"
    assert launcher.logs(JOB, incarnation, 2) == "b\nc\n"


# -- submission --------------------------------------------------------------------------------------------------------


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeSpark:
    path = f"{jar_dir()}/a.jar:/b.jar:{spark_folder()}/jars/c.jar"
    settings = {"spark.app.name": "streamwarden x", "spark.driver.extraClassPath": path}
    return MadeSpark(tmp_path / "spark", monkeypatch, settings)


def submit(workspace: Workspace) -> str:
    incarnation = launched(workspace)
    submission.submit(workspace, JOB, spec(), incarnation)
    return incarnation


def test_secrets_are_submitted_by_reference(
    config: Path, server: ApiServer, spark: MadeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "k8s-canary-3f9"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    kubernetes = {**BLOCK, "secrets": {"AWS_SECRET_ACCESS_KEY": "s3-login:secret-key"}, "context": "c"}
    write(config, server.address, kubernetes=kubernetes)
    incarnation = submit(open_workspace("test", config=config))
    assert secret not in str(spark.given)
    arguments, given = spark.given["arguments"], spark.properties
    for role in ("driver", "executor"):
        assert given[f"spark.kubernetes.{role}.secretKeyRef.AWS_SECRET_ACCESS_KEY"] == "s3-login:secret-key"
        assert given[f"spark.kubernetes.{role}.label.streamwarden/incarnation"] == incarnation
    assert given["spark.kubernetes.driver.pod.name"] == pod_name(JOB, incarnation)
    assert given["spark.kubernetes.driver.podTemplateFile"] == str(config / "pod.yaml")
    assert given["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert given["spark.kubernetes.context"] == "c"
    # The image's paths, not this machine's.
    ours, _, sparks = given["spark.driver.extraClassPath"].split(":")
    assert ours == "/opt/streamwarden/.jars/a.jar"
    assert re.fullmatch(r"/opt/streamwarden/\.venv/lib/python3\.\d+/site-packages/pyspark/jars/c\.jar", sparks)
    assert "local:///opt/streamwarden/streamwarden/driver/cluster_entry.py" in arguments
    assert arguments[arguments.index("--config") + 1] == "/opt/streamwarden/config"


def test_a_refused_submission_gives_the_api_servers_words(workspace: Workspace, spark: MadeSpark) -> None:
    message = 'pods "x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=4, limited: pods=4.'
    thrown = 'Exception in thread "main" KubernetesClientException: Operation: [create]  for kind: [Pod] failed.'
    spark.answers(f"{thrown} Message: {message} Received status: Status(code=403).", 1)
    with pytest.raises(StreamwardenError) as raised:
        submit(workspace)
    assert raised.value.code == "SUBMISSION_REFUSED" and message in raised.value.what
    spark.answers("Caused by: java.net.ConnectException: Connection refused", 1)
    with pytest.raises(StreamwardenError) as raised:
        submit(workspace)
    assert raised.value.code == "KUBERNETES_UNREACHABLE"


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    started: list[str] = []
    monkeypatch.setattr(kubernetes, "start_submission", lambda _, __, incarnation: started.append(incarnation))
    return started


def start(workspace: Workspace, incarnation: str) -> None:
    launch = Launch(incarnation=incarnation, at=utc_now(), by="t", reason="", digest="")
    KubernetesLauncher(workspace).start(JOB, launch)


def test_a_pod_that_is_there_is_not_submitted_again(
    workspace: Workspace, server: ApiServer, submissions: list[str]
) -> None:
    first, second = new_id(), new_id()
    name = pod_name(JOB, first)
    server.pods[name] = pod(name, "Running")
    start(workspace, first)
    start(workspace, second)
    assert submissions == [second]


def test_ended_pods_are_removed_but_for_the_newest(
    workspace: Workspace, server: ApiServer, submissions: list[str]
) -> None:
    for number in range(6):
        one = pod(f"old-{number}", "Running" if number == 0 else "Failed")
        one["metadata"]["labels"]["streamwarden/incarnation"] = f"2026{number}"
        server.pods[f"old-{number}"] = one
    start(workspace, new_id())
    assert sorted(server.pods) == ["old-0", "old-3", "old-4", "old-5"] and len(submissions) == 1
    assert any("labelSelector=streamwarden" in asked and "zone_windows" in asked for asked in server.asked)


@pytest.mark.parametrize("job", ["a", "zone_windows", "a" * 63, "x_" + "9" * 61, "fifteen_chars_x_y"])
def test_a_pods_name_is_one_that_kubernetes_takes(job: str) -> None:
    name = pod_name(job, new_id())
    # Spark takes 47 characters for the names of executors.
    assert len(name) <= 47 and name == name.lower() and "--" not in name
    assert name.replace("-", "").isalnum() and pod_name(job, new_id()) != name


# -- the profile -------------------------------------------------------------------------------------------------------

INVALID = [
    ({"kubernetes": None}, "launcher: kubernetes and the block `kubernetes` need each other"),
    ({"launcher": "local"}, "launcher: kubernetes and the block `kubernetes` need each other"),
    ({"master": "local[2]"}, "launcher: kubernetes needs `master: k8s://"),
    ({"master": "k8s://https://user:secret@h:1"}, "launcher: kubernetes needs `master"),
    ({"same_image": False}, "same_image: pods need `true`"),
    ({"root": "var/x"}, "root: pods need an absolute path"),
    ({"kubernetes": {"namespace": "streams", "image": "i:1"}}, "s3: pods need it"),
    ({"kubernetes": {**BLOCK, "pod": "x"}}, "kubernetes.pod: unknown key"),
    ({"kubernetes": {**BLOCK, "namespace": "No Such"}}, "kubernetes.namespace"),
    ({"kubernetes": {**BLOCK, "secrets": {"AWS_SECRET_ACCESS_KEY": "the value itself"}}}, "kubernetes.secrets"),
]


@pytest.mark.parametrize(("fields", "message"), INVALID)
def test_a_profile_that_can_not_work_is_refused(
    config: Path, server: ApiServer, fields: dict[str, Any], message: str
) -> None:
    write(config, server.address, **fields)
    with pytest.raises(StreamwardenError) as raised:
        load_profile("test", config=config)
    assert raised.value.code == "CONFIG_INVALID" and message in raised.value.what
    assert "user:secret" not in raised.value.what and "the value itself" not in raised.value.what
