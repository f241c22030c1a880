"""A small kubelet: it runs the pods of its node as processes of this machine.

Each pod has namespaces of its own for mounts, host name and processes. It has a loopback address and volumes. Where the
kernel has control groups of version 1, its container's memory limit holds. It does what Spark's pods need: one
container, environment by reference, and volumes from ConfigMaps, Secrets, folders of the host and service accounts.
"""

from __future__ import annotations

import base64
import http.server
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.launchers.kubernetes.api import Api, ApiError

CONTAINER = Path(__file__).with_name("container.py")
MEMORY = Path("/sys/fs/cgroup/memory")
PORT = 10250
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private")
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Image:
    """What a pod gets of its image: folders of this machine at the image's paths, environment, entry point."""

    mounts: dict[str, Path]
    environment: dict[str, str]
    entrypoint: list[str]
    folder: str
    hidden: tuple[Path, ...] = ()


@dataclass
class Pod:
    """A pod on this node, and its process."""

    namespace: str
    name: str
    uid: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def group(self) -> Path:
        return MEMORY / f"streamwarden-test-{self.uid}"

    def signal(self, number: int) -> None:
        """Send a signal to the container's first process."""
        if self.process is None or self.process.poll() is not None:
            return
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                child.send_signal(number)
        if number == signal.SIGKILL:
            self.process.kill()


class Kubelet:
    """One node. Its pods live on when it is stopped, and it finds them when it is started again."""

    def __init__(
        self,
        name: str,
        *,
        api: Api,
        address: str,
        addresses: Iterator[str],
        folder: Path,
        images: dict[str, Image],
        hosts: Path,
        server: tuple[str, int],
        certificate: tuple[Path, Path],
        capacity: dict[str, str],
    ) -> None:
        self.name = name
        self.address = address
        self.pods: dict[str, Pod] = {}
        self._api = api
        self._addresses = addresses
        self._folder = folder
        self._images = images
        self._hosts = hosts
        self._server = server
        self._certificate = certificate
        self._capacity = capacity
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._logs: http.server.ThreadingHTTPServer | None = None

    # -- the node ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._stop = threading.Event()
        self._register()
        self._serve_logs()
        for target in (self._beat, self._look):
            thread = threading.Thread(target=target, args=(self._stop,), daemon=True, name=f"{self.name} {target}")
            thread.start()
            self._threads.append(thread)

    def cut_off(self) -> None:
        """No word passes between the node and the API server any more; its pods run on."""
        self._stop.set()
        if self._logs is not None:
            self._logs.shutdown()
            self._logs.server_close()
            self._logs = None
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def power_off(self) -> None:
        """The node is gone, with all that ran on it."""
        self.cut_off()
        for pod in list(self.pods.values()):
            pod.signal(signal.SIGKILL)
        self.pods.clear()

    def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        body = {"metadata": {"name": self.name, "labels": labels}, "spec": {}}
        with _unless(409):
            self._api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **body})
        self._say_ready()

    def _say_ready(self) -> None:
        now = _now()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        status = {
            "capacity": self._capacity,
            "allocatable": self._capacity,
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
            "nodeInfo": {"kubeletVersion": "v0.0.0-test"} | dict.fromkeys(_NODE_INFO, "test"),
        }
        self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    def _beat(self, stop: threading.Event) -> None:
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while not stop.is_set():
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name},
                "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 5, "renewTime": _now(micro=True)},
            }
            with _through_outages():
                self._say_ready()
                try:
                    self._api.patch(f"{leases}/{self.name}", lease)
                except ApiError as error:
                    if error.status != 404:
                        raise
                    self._api.post(leases, lease)
            stop.wait(1)

    def _look(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with _through_outages():
                for kind, found in self._api.watch(
                    "/api/v1/pods", seconds=2, fieldSelector=f"spec.nodeName={self.name}"
                ):
                    if stop.is_set():
                        return
                    self._act(kind, found)
            stop.wait(0.1)

    def _act(self, kind: str, found: dict[str, Any]) -> None:
        metadata = found["metadata"]
        uid = metadata["uid"]
        known = self.pods.get(uid)
        if kind == "DELETED":
            if known is not None:
                known.signal(signal.SIGKILL)
        elif "deletionTimestamp" in metadata:
            grace = metadata.get("deletionGracePeriodSeconds") or 0
            threading.Thread(target=self._end, args=(known, metadata, grace), daemon=True).start()
        elif known is None and found["status"]["phase"] == "Pending":
            folder = self._folder / f"pod-{uid}"
            pod = Pod(metadata["namespace"], metadata["name"], uid, next(self._addresses), folder)
            self.pods[uid] = pod
            threading.Thread(target=self._run, args=(pod, found, self._stop), daemon=True).start()

    # -- a pod ---------------------------------------------------------------------------------------------------------

    def _run(self, pod: Pod, found: dict[str, Any], stop: threading.Event) -> None:
        container = found["spec"]["containers"][0]
        pod.folder.mkdir(parents=True)
        began = _now()
        while not stop.is_set() and not pod.ended.is_set():
            try:
                spec = self._prepared(pod, found, container)
                break
            except _NotReady as reason:
                self._say_waiting(pod, container, *reason.args)
            except (ApiError, httpx.HTTPError, OSError) as error:
                self._say_waiting(pod, container, "ContainerCreating", str(error))
            time.sleep(0.5)
        else:
            return
        (pod.folder / "spec.json").write_text(json.dumps(spec))
        self._limit(pod, container)
        with pod.log.open("ab") as log:
            pod.process = subprocess.Popen(
                [*UNSHARE, sys.executable, str(CONTAINER), str(pod.folder / "spec.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._joins(pod),
            )
        if pod.ended.is_set():
            pod.signal(signal.SIGKILL)
        state = {"running": {"startedAt": began}}
        self._say(pod, "Running", {"podIP": pod.address, "startTime": began, **self._container(container, state)})
        code = pod.process.wait()
        terminated = {
            "exitCode": code if code >= 0 else 128 - code,
            "reason": "OOMKilled" if self._was_out_of_memory(pod) else "Error" if code else "Completed",
            "startedAt": began,
            "finishedAt": _now(),
        }
        pod.ended.set()
        state = {"terminated": terminated}
        # A node that is cut off says nothing, and one that comes back says it then.
        while pod.uid in self.pods and not self._say(
            pod, "Failed" if code else "Succeeded", self._container(container, state)
        ):
            time.sleep(0.5)

    def _end(self, pod: Pod | None, metadata: dict[str, Any], grace: int) -> None:
        if pod is not None:
            if pod.process is not None:
                pod.signal(signal.SIGTERM)
                deadline = time.monotonic() + grace
                while pod.process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                pod.signal(signal.SIGKILL)
                pod.process.wait()
            else:
                pod.ended.set()
        with _through_outages(), _unless(404, 409):
            self._api.delete(
                f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}",
                {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}},
            )

    def evict(self, name: str, message: str) -> None:
        """End a pod as a kubelet does whose node is short of something: the pod stays, as failed."""
        (pod,) = (one for one in self.pods.values() if one.name == name)
        status = {"reason": "Evicted", "message": message}
        self._say(pod, "Failed", status)
        pod.signal(signal.SIGKILL)

    def _prepared(self, pod: Pod, found: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
        image = self._images.get(container["image"])
        if image is None:
            raise _NotReady("ErrImagePull", f'failed to pull image "{container["image"]}": not found')
        volumes = {one["name"]: self._volume(pod, found, one) for one in found["spec"].get("volumes", [])}
        mounts = [(str(source), target) for target, source in image.mounts.items()]
        # Parents first.
        for one in sorted(container.get("volumeMounts", []), key=lambda mount: str(mount["mountPath"])):
            source = volumes[one["name"]] / one.get("subPath", "")
            mounts.append((str(source), one["mountPath"]))
        mounts.append((str(self._hosts), "/etc/hosts"))
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": pod.name, **image.environment}
        environment |= {"KUBERNETES_SERVICE_HOST": self._server[0], "KUBERNETES_SERVICE_PORT": str(self._server[1])}
        for one in container.get("env", []):
            environment[one["name"]] = self._value(pod, one)
        return {
            "folder": str(pod.folder),
            "mounts": mounts,
            "read_only": list(image.mounts),
            "hidden": [str(path) for path in image.hidden],
            "hostname": pod.name[:63],
            "folder_inside": container.get("workingDir", image.folder),
            "command": [*container.get("command", image.entrypoint), *container.get("args", [])],
            "environment": environment,
        }

    def _value(self, pod: Pod, one: dict[str, Any]) -> str:
        source = one.get("valueFrom")
        if source is None:
            return str(one.get("value", ""))
        if "fieldRef" in source:
            known = {"status.podIP": pod.address, "metadata.name": pod.name, "metadata.namespace": pod.namespace}
            return known[source["fieldRef"]["fieldPath"]]
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            data = self._secret(pod.namespace, reference["name"])
            if reference["key"] not in data:
                what = f"couldn't find key {reference['key']} in Secret {pod.namespace}/{reference['name']}"
                raise _NotReady("CreateContainerConfigError", what)
            return data[reference["key"]].decode()
        raise AssertionError(f"environment variable {one['name']}: not known to this kubelet")

    def _secret(self, namespace: str, name: str) -> dict[str, bytes]:
        try:
            found = self._api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            raise _NotReady("CreateContainerConfigError", f'secret "{name}" not found') from None
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    def _volume(self, pod: Pod, found: dict[str, Any], volume: dict[str, Any]) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder = pod.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            self._config_map(pod.namespace, volume["configMap"], folder)
        elif "secret" in volume:
            for key, value in self._secret(pod.namespace, volume["secret"]["secretName"]).items():
                (folder / key).write_bytes(value)
        elif "projected" in volume:
            for source in volume["projected"]["sources"]:
                if "serviceAccountToken" in source:
                    token = self._token(pod, found["spec"]["serviceAccountName"])
                    (folder / source["serviceAccountToken"]["path"]).write_text(token)
                elif "configMap" in source:
                    self._config_map(pod.namespace, source["configMap"], folder)
                else:
                    for item in source["downwardAPI"]["items"]:
                        assert item["fieldRef"]["fieldPath"] == "metadata.namespace"
                        (folder / item["path"]).write_text(pod.namespace)
        else:
            assert "emptyDir" in volume, f"volume {volume['name']}: not known to this kubelet"
        return folder

    def _config_map(self, namespace: str, source: dict[str, Any], folder: Path) -> None:
        try:
            found = self._api.get(f"/api/v1/namespaces/{namespace}/configmaps/{source['name']}")
        except ApiError as error:
            if error.status != 404:
                raise
            raise _NotReady("ContainerCreating", f'configmap "{source["name"]}" not found') from None
        paths = {item["key"]: item["path"] for item in source.get("items", [])}
        for key, value in found.get("data", {}).items():
            if not paths or key in paths:
                (folder / paths.get(key, key)).write_text(value)

    def _token(self, pod: Pod, account: str) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        answer = self._api.post(
            f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token",
            {"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}},
        )
        return str(answer["status"]["token"])

    # -- memory --------------------------------------------------------------------------------------------------------

    def _limit(self, pod: Pod, container: dict[str, Any]) -> None:
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        if limit is None or not os.access(MEMORY, os.W_OK) or not (MEMORY / "memory.limit_in_bytes").exists():
            return
        pod.group.mkdir()
        (pod.group / "memory.limit_in_bytes").write_text(str(quantity(limit)))

    def _joins(self, pod: Pod) -> Callable[[], None] | None:
        if not pod.group.is_dir():
            return None
        tasks = str(pod.group / "cgroup.procs")

        def join() -> None:
            with open(tasks, "w") as file:  # noqa: PTH123
                file.write(str(os.getpid()))

        return join

    def _was_out_of_memory(self, pod: Pod) -> bool:
        if not pod.group.is_dir():
            return False
        killed = re.search(r"oom_kill (\d+)", (pod.group / "memory.oom_control").read_text())
        # The folder can be removed once the kernel has buried the last process.
        with suppress(OSError):
            pod.group.rmdir()
        return killed is not None and int(killed[1]) > 0

    # -- status --------------------------------------------------------------------------------------------------------

    def _container(self, container: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        ready = {"type": "Ready", "status": str("running" in state), "lastTransitionTime": _now()}
        return {"containerStatuses": [status], "conditions": [ready]}

    def _say_waiting(self, pod: Pod, container: dict[str, Any], reason: str, message: str) -> None:
        self._say(pod, "Pending", self._container(container, {"waiting": {"reason": reason, "message": message}}))

    def _say(self, pod: Pod, phase: str, status: dict[str, Any]) -> bool:
        """Write a pod's status; return whether it is known, which it also is if the pod is gone."""
        if self._stop.is_set():
            return False
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            found = self._api.get(path)
            if found["metadata"]["uid"] != pod.uid or found["status"]["phase"] in ("Failed", "Succeeded"):
                return True
            self._api.patch(f"{path}/status", {"status": {"phase": phase, **status}})
        except ApiError as error:
            return error.status == 404
        except (httpx.HTTPError, OSError):
            return False
        return True

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _serve_logs(self) -> None:
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urllib.parse.urlsplit(self.path)
                _, _, namespace, name, _ = address.path.split("/", 4)
                options = urllib.parse.parse_qs(address.query)
                pod = next(
                    (one for one in kubelet.pods.values() if (one.namespace, one.name) == (namespace, name)), None
                )
                text = pod.log.read_bytes() if pod is not None and pod.log.exists() else b""
                if "tailLines" in options:
                    text = b"".join(text.splitlines(keepends=True)[-int(options["tailLines"][0]) :])
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._logs = http.server.ThreadingHTTPServer((self.address, PORT), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._certificate)
        self._logs.socket = context.wrap_socket(self._logs.socket, server_side=True)
        threading.Thread(target=self._logs.serve_forever, args=(0.1,), daemon=True).start()


class _NotReady(Exception):
    """A reason and a message why a container can't be started yet."""


_NODE_INFO = [
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID"),
    *("operatingSystem", "osImage", "systemUUID"),
]


def quantity(text: str) -> int:
    """Return a quantity of Kubernetes, such as 1Gi, as a number."""
    parts = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    assert parts is not None, text
    return int(parts[1]) * _UNITS[parts[2]]


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def _unless(*statuses: int) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status not in statuses:
            raise


@contextmanager
def _through_outages() -> Iterator[None]:
    """Let an API server be away: the next round asks again."""
    with suppress(ApiError, httpx.HTTPError, OSError, ValueError):
        yield
