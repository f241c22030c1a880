"""Spark's settings for a driver in a pod, each with its reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from streamwarden.model.kubernetes_spec import KubernetesSpec
from streamwarden.runtime.launchers.kubernetes import INCARNATION, JOB, pod_name
from streamwarden.spark.jars import jar_dir, spark_folder

__all__ = ["DEFAULTS", "in_image", "kubernetes_settings"]

DEFAULTS = {
    # Beside the JVM's heap, a driver's container holds Python, the JVM's own memory and RocksDB. Spark's default, 40 %
    # of the heap and at least 384 MB, is too little for a small heap: the node would kill the container.
    "spark.driver.memoryOverhead": "1g",
    # Milliseconds. The default of 10 s was too short on a machine under heavy load.
    **{
        f"spark.kubernetes.{role}.{kind}Timeout": "30000"
        for role in ("submission", "driver")
        for kind in ("connection", "request")
    },
}
"""Settings that profile and job may override."""


def kubernetes_settings(config: Path, spec: KubernetesSpec, job: str, incarnation: str) -> dict[str, str]:
    """Return the settings of a driver's submission beside those of its session.

    None of them holds a secret: those are references, which the pod's node resolves.

    Parameters
    ----------
    config
        The configuration folder, which pod templates are relative to.
    spec
        The profile's part for Kubernetes.
    job, incarnation
        The driver, which is found again by them.
    """
    pod = pod_name(job, incarnation)
    settings = {
        "spark.kubernetes.namespace": spec.namespace,
        "spark.kubernetes.container.image": spec.image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": spec.service_account,
        "spark.kubernetes.authenticate.executor.serviceAccountName": spec.executor_service_account,
        "spark.kubernetes.driver.pod.name": pod,
        "spark.kubernetes.executor.podNamePrefix": pod,
        "spark.kubernetes.submission.waitAppCompletion": "false",
        # What a driver would need more rights for. Its service and ConfigMap end with its pod, which owns them.
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        # Otherwise the modules beside the entry script would hide others of the same name.
        "spark.kubernetes.driverEnv.PYTHONSAFEPATH": "1",
        "spark.kubernetes.driverEnv.PYTHONUNBUFFERED": "1",
        # In UTC from its start: `in_utc` comes too late for the JVM.
        "spark.kubernetes.driverEnv.TZ": "UTC",
    }
    if spec.context is not None:
        settings["spark.kubernetes.context"] = spec.context
    for role, template in (("driver", spec.driver_template), ("executor", spec.executor_template)):
        settings[f"spark.kubernetes.{role}.label.{JOB}"] = job
        settings[f"spark.kubernetes.{role}.label.{INCARNATION}"] = incarnation
        if template is not None:
            settings[f"spark.kubernetes.{role}.podTemplateFile"] = str(config / template)
        for variable, reference in spec.secrets.items():
            settings[f"spark.kubernetes.{role}.secretKeyRef.{variable}"] = reference
    return settings


def in_image(settings: Mapping[str, str], spec: KubernetesSpec) -> dict[str, str]:
    """Return settings with the image's paths of jars, in place of this machine's.

    Spark's jars are taken to be where `docker/Dockerfile` has them. Another image works all the same, but without the
    class archive.
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = {
        str(jar_dir()): f"{spec.home}/.jars",
        str(spark_folder()): f"{spec.home}/.venv/lib/{python}/site-packages/pyspark",
    }
    found = dict(settings)
    for here, there in places.items():
        found = {name: value.replace(here, there) for name, value in found.items()}
    return found
