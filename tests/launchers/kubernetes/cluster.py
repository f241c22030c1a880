"""A Kubernetes cluster on this machine: a real API server, scheduler, controllers and etcd, and small kubelets.

All addresses are loopback addresses, one network of them for each cluster. ``make kubernetes-server`` builds the
programs. It needs root, for the API server's port and for the namespaces of pods.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.launchers.kubernetes.api import Api, ApiError
from tests.launchers.kubernetes.image import our_image
from tests.launchers.kubernetes.kubelet import Kubelet

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = REPOSITORY / ".tools" / "bin"
MANIFESTS = REPOSITORY / "deploy" / "kubernetes"
NAMESPACE = "streams"
IMAGE = "streamwarden:test"


def missing() -> str:
    """Return what is missing for a cluster on this machine, or nothing."""
    if os.geteuid() != 0:
        return "it needs root, for the namespaces of pods"
    names = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd")
    absent = [name for name in names if not (PROGRAMS / name).is_file()]
    return f"{', '.join(absent)}: run `make kubernetes-server`" if absent else ""


class Cluster:
    """The control plane, and its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Two clusters must not meet: a network of 250 addresses for each process.
        self._net = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"
        self._nodes_addresses = (f"{self._net}.{number}" for number in range(10, 20))
        # From the first one again after 235 pods: it has ended long before.
        self._pods_addresses = (f"{self._net}.{number}" for number in itertools.cycle(range(20, 255)))
        self.address = f"{self._net}.1"
        self.server = f"https://{self.address}:443"
        self._admin = secrets.token_hex(16)
        self.hosts = folder / "hosts"
        self.hosts.write_text(self._names([], []))
        self.nodes: dict[str, Kubelet] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        (folder / "tokens.csv").write_text(f'{self._admin},admin,admin,"system:masters"\n')
        key = ["openssl", "genrsa", "-out", str(folder / "accounts.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)

    # -- the control plane ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_control_plane()
        threading.Thread(target=self._name_service, daemon=True).start()
        self.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for manifest in sorted(MANIFESTS.glob("*.yaml")):
            for one in yaml.safe_load_all(manifest.read_text()):
                group = "/api/v1" if one["apiVersion"] == "v1" else f"/apis/{one['apiVersion']}"
                self.api.post(f"{group}/namespaces/{NAMESPACE}/{one['kind'].lower()}s", one)

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of the pods, secrets and the like of the drivers' namespace, or of one."""
        return f"/api/v1/namespaces/{NAMESPACE}/{kind}" + (f"/{name}" if name else "")

    def stop(self) -> None:
        self._stop.set()
        for node in list(self.nodes.values()):
            node.power_off()
        self.stop_control_plane()

    def start_control_plane(self) -> None:
        etcd = f"http://{self._net}.2"
        self._run(
            *("etcd", "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", f"{etcd}:2379", "--advertise-client-urls", f"{etcd}:2379"),
            *("--listen-peer-urls", f"{etcd}:2380", "--initial-advertise-peer-urls", f"{etcd}:2380"),
            *("--initial-cluster", f"default={etcd}:2380", "--log-level", "warn"),
        )
        key, certificates = str(self.folder / "accounts.key"), self.folder / "certificates"
        self._run(
            *("kube-apiserver", "--etcd-servers", f"{etcd}:2379"),
            *("--bind-address", self.address, "--advertise-address", self.address, "--secure-port", "443"),
            # An address of loopback can't be announced to others.
            *("--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.96.0.0/16"),
            *("--cert-dir", str(certificates), "--token-auth-file", str(self.folder / "tokens.csv")),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-signing-key-file", key, "--service-account-key-file", key),
            *("--authorization-mode", "RBAC", "--allow-privileged=true"),
            *("--audit-policy-file", self._audit_policy(), "--audit-log-path", str(self.folder / "audit.log")),
            # A node that is gone is given up within seconds, and not after five minutes.
            *("--default-not-ready-toleration-seconds=2", "--default-unreachable-toleration-seconds=2"),
        )
        deadline = time.monotonic() + 120
        while not self._is_ready():
            assert self._processes["kube-apiserver"].poll() is None, self.log("kube-apiserver")
            assert time.monotonic() < deadline, self.log("kube-apiserver")
            time.sleep(0.2)
        admin = str(self.kubeconfig("admin", self._admin))
        self._run(
            *("kube-controller-manager", "--kubeconfig", admin, "--leader-elect=false", "--secure-port=0"),
            *("--service-account-private-key-file", key, "--root-ca-file", str(certificates / "apiserver.crt")),
            *("--node-monitor-period=1s", "--node-monitor-grace-period=6s", "--use-service-account-credentials=false"),
        )
        self._run("kube-scheduler", "--kubeconfig", admin, "--leader-elect=false", "--secure-port=0")

    def stop_control_plane(self) -> None:
        # The store last: the others would log its absence.
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self.kill(name)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(PROGRAMS / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        # The certificate is made at the server's first start.
        if not (self.folder / "certificates" / "apiserver.crt").exists():
            return False
        with suppress(ApiError, httpx.HTTPError, OSError):
            return bool(self.api.get("/api/v1/namespaces/default"))
        return False

    def _audit_policy(self) -> str:
        path = self.folder / "audit.yaml"
        rules = [{"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["RequestReceived"]}]
        rules.append({"level": "None"})
        path.write_text(yaml.safe_dump({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        return str(path)

    def refusals(self) -> list[str]:
        """Return what service accounts were refused for want of a right."""
        found = []
        for line in (self.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            if event.get("responseStatus", {}).get("code") == 403:
                found.append(f"{event['user']['username']} {event['verb']} {event['requestURI']}")
        return found

    # -- clients -------------------------------------------------------------------------------------------------------

    @cached_property
    def api(self) -> Api:
        """The API with the right to everything."""
        return Api(self.server, self.folder / "certificates" / "apiserver.crt", self._admin)

    def token(self, account: str) -> str:
        """Return a token of a service account, as a pod of it would have."""
        body = {"spec": {"audiences": [], "expirationSeconds": 7200}}
        return str(self.api.post(f"{self.path('serviceaccounts', account)}/token", body)["status"]["token"])

    def kubeconfig(self, name: str, token: str) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        authority = str(self.folder / "certificates" / "apiserver.crt")
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.server, "certificate-authority": authority}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def add_node(self, name: str) -> Kubelet:
        certificates = self.folder / "certificates"
        node = Kubelet(
            name,
            api=self.api,
            address=next(self._nodes_addresses),
            addresses=self._pods_addresses,
            folder=self.folder / name,
            images={IMAGE: our_image()},
            hosts=self.hosts,
            server=(self.address, 443),
            certificate=(certificates / "apiserver.crt", certificates / "apiserver.key"),
            capacity={"cpu": "6", "memory": "16Gi", "pods": "50"},
        )
        node.start()
        self.nodes[name] = node
        return node

    def remove_node(self, name: str) -> None:
        """Power a node off, for good."""
        self.nodes.pop(name).power_off()

    def _name_service(self) -> None:
        """Keep a file of hosts that all pods share: the addresses behind each service."""
        while not self._stop.wait(0.3):
            with suppress(ApiError, httpx.HTTPError, OSError):
                text = self._names(self.api.items(self.path("services")), self.api.items(self.path("pods")))
                if text != self.hosts.read_text():
                    # In place: pods have mounted this very file.
                    self.hosts.write_text(text)

    def _names(self, services: list[dict[str, Any]], pods: list[dict[str, Any]]) -> str:
        lines = ["127.0.0.1 localhost", f"{self.address} kubernetes.default.svc"]
        live = [pod for pod in pods if pod["status"].get("podIP") and pod["status"]["phase"] == "Running"]
        lines += [f"{pod['status']['podIP']} {pod['metadata']['name']}" for pod in live]
        for service in services:
            wanted = service["spec"].get("selector", {}).items()
            for pod in live:
                if wanted and wanted <= pod["metadata"].get("labels", {}).items():
                    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
                    lines.append(f"{pod['status']['podIP']} {name}.svc {name}.svc.cluster.local {name}")
        return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    # For a look at it by hand: a cluster with one node, until it is interrupted.
    sys.stdout.write(f"{missing()}\n")
    made = Cluster(Path(sys.argv[1]))
    made.start()
    made.add_node("node-1")
    sys.stdout.write(f"{made.server} {made.folder}/admin.kubeconfig\n")
    sys.stdout.flush()
    try:
        threading.Event().wait()
    finally:
        made.stop()
