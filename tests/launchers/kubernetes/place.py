"""Drivers as pods: found again by the name of their pod, which is made of job and incarnation."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.runtime.launchers.kubernetes import pod_name
from streamwarden.store.workspace import Workspace
from tests.integration.conftest import ROOT
from tests.launchers.kubernetes.api import ApiError
from tests.launchers.kubernetes.cluster import IMAGE, NAMESPACE, Cluster, missing
from tests.launchers.kubernetes.kubelet import Kubelet, Pod
from tests.launchers.place import JOB, LauncherPlace

__all__ = ["KubernetesPlace"]

SECRET = "s3-login"


class KubernetesPlace(LauncherPlace):
    """A cluster of one node, on a bucket. The test deploys with the rights of the submitter, and no others."""

    def __init__(self, folder: Path, store: dict[str, Any]) -> None:
        if missing():
            pytest.skip(f"no Kubernetes: {missing()}")
        self.folder = folder
        self.cluster = Cluster(folder / "cluster")
        self._before = {name: os.environ.get(name) for name in ("KUBECONFIG", "STREAMWARDEN_ROOT")}
        os.environ["STREAMWARDEN_ROOT"] = str(folder / ROOT)
        super().__init__(folder, store)

    def profile(self, **fields: Any) -> Workspace:
        (self.config / "pod.yaml").write_text(yaml.safe_dump(self._template()))
        kubernetes = {
            "namespace": NAMESPACE,
            "image": IMAGE,
            "config": str(self.config),
            "driver_template": "pod.yaml",
            "executor_template": "pod.yaml",
            "secrets": {
                "AWS_ACCESS_KEY_ID": f"{SECRET}:access-key",
                "AWS_SECRET_ACCESS_KEY": f"{SECRET}:secret-key",
            },
            **fields.pop("kubernetes", {}),
        }
        own = {
            "launcher": "kubernetes",
            "master": f"k8s://{self.cluster.server}",
            "kubernetes": kubernetes,
            "same_image": True,
            # Each pod has its own; see STREAMWARDEN_ROOT for this machine's.
            "root": "/var/lib/streamwarden",
        }
        # The tests' modules are beside the package.
        python = {f"spark.{place}.PYTHONPATH": "/opt/streamwarden" for place in ("kubernetes.driverEnv", "executorEnv")}
        if "s3" in self._store:
            python["spark.kubernetes.driverEnv.AWS_ENDPOINT_URL_S3"] = os.environ["AWS_ENDPOINT_URL_S3"]
        spark = {"spark.kubernetes.driver.request.cores": "500m", **python, **fields.pop("spark", {})}
        return super().profile(**{**own, "spark": spark, **fields})

    def _template(self) -> dict[str, Any]:
        # For the configuration, and for the file that holds a batch.
        volume = {"name": "test", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        mount = {"name": "test", "mountPath": str(self.folder)}
        container = {"name": "spark", "volumeMounts": [mount]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 5},
        }

    def open(self) -> None:
        self.cluster.start()
        self.add_secret()
        token = self.cluster.token("streamwarden-submitter")
        os.environ["KUBECONFIG"] = str(self.cluster.kubeconfig("submitter", token))
        self.cluster.add_node("node-1")

    def add_secret(self) -> None:
        keys = {"access-key": os.environ["AWS_ACCESS_KEY_ID"], "secret-key": os.environ["AWS_SECRET_ACCESS_KEY"]}
        self.cluster.api.post(self.cluster.path("secrets"), {"metadata": {"name": SECRET}, "stringData": keys})

    def close(self) -> None:
        for node in self.cluster.nodes.values():
            for pod in node.pods.values():
                if pod.log.exists():
                    # pytest shows it with a test that failed.
                    sys.stdout.write(f"--- {pod.name}\n{pod.log.read_text()[-4000:]}\n")
        self.cluster.stop()
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def restart_all_else(self) -> None:
        self.cluster.stop_control_plane()
        for node in self.cluster.nodes.values():
            node.cut_off()
        self.cluster.start_control_plane()
        for node in self.cluster.nodes.values():
            node.start()

    @contextmanager
    def take_room(self) -> Iterator[None]:
        for name in list(self.cluster.nodes):
            self.cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
        yield
        for name in list(self.cluster.nodes):
            self.cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": False}})

    def pod(self, incarnation: str) -> tuple[Kubelet, Pod]:
        """Return a driver's pod, and its node."""
        name = pod_name(JOB, incarnation)
        ((node, pod),) = (
            (node, pod)
            for node in self.cluster.nodes.values()
            for pod in node.pods.values()
            if pod.name == name and pod.process is not None
        )
        return node, pod

    def kill_hard(self, incarnation: str) -> None:
        _, pod = self.pod(incarnation)
        pod.signal(signal.SIGKILL)

    def kubernetes_pod(self, incarnation: str) -> dict[str, Any] | None:
        """Return a driver's pod as the API server has it; None if it has none."""
        try:
            return self.cluster.api.get(self.cluster.path("pods", pod_name(JOB, incarnation)))
        except ApiError as error:
            assert error.status == 404
            return None
