"""The part of a profile that says where in a Kubernetes cluster drivers run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from streamwarden.model.spec_base import Strict

__all__ = ["KubernetesSpec"]

_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_DNS_NAME = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""A field with the name of an environment variable."""

SecretKey = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?:[-._a-zA-Z0-9]+$")]
"""A field with a Secret's name and one of its keys: ``s3-login:secret-key``."""


class KubernetesSpec(Strict):
    """Pods of drivers and executors. The API server is the profile's `master`."""

    namespace: str = Field(pattern=_DNS_LABEL, description="Namespace of the pods. It must exist.")
    image: str = Field(
        min_length=1, description="Image of drivers and executors, built from docker/Dockerfile. Name it with its tag."
    )
    service_account: str = Field(
        default="streamwarden-driver",
        pattern=_DNS_NAME,
        description="Service account of the drivers, with the rights of deploy/kubernetes/driver.yaml.",
    )
    executor_service_account: str = Field(
        default="streamwarden-executor",
        pattern=_DNS_NAME,
        description="Service account of the executors; it needs no rights.",
    )
    home: str = Field(
        default="/opt/streamwarden",
        pattern=r"^/",
        description="Folder of Streamwarden inside the image: the package, and the jars in .jars.",
    )
    config: str | None = Field(
        default=None,
        pattern=r"^/",
        description="Configuration folder inside the pods, with the same profiles. Default: config/ of `home`.",
    )
    secrets: dict[Variable, SecretKey] = Field(
        default_factory=dict,
        description="VARIABLE: SECRET:KEY. Environment variables of drivers and executors, by reference to Secrets.",
    )
    driver_template: str | None = Field(
        default=None,
        description="File with the pod template of drivers, relative to the configuration folder: volumes, node"
        " selectors, tolerations.",
    )
    executor_template: str | None = Field(default=None, description="The same for executors.")
    context: str | None = Field(
        default=None,
        description="Context of the kubeconfig file to use. Default: the current one; in a pod without such a file, its"
        " service account.",
    )
