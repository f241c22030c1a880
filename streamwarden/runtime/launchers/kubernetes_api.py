"""The few calls to a Kubernetes API server that a launcher needs."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from streamwarden.errors import ErrorCode, StreamwardenError, require_extra
from streamwarden.foreign_json import parse_object

__all__ = ["PodApi", "open_api"]

_TIMEOUT = (3.0, 10.0)
"""Seconds to connect, and to an answer."""


class PodApi:
    """Pods of one namespace, through the official client, as the API server's JSON.

    The client's own classes change between its versions, and refuse answers that they do not know.

    Every method raises ``KUBERNETES_UNREACHABLE`` if the server can't be reached or is out of order, and
    ``SUBMISSION_REFUSED`` if it refuses.

    Parameters
    ----------
    client
        ``kubernetes.client.ApiClient``.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        from kubernetes.client import CoreV1Api

        self._core = CoreV1Api(client)
        self._namespace = namespace

    def pod(self, name: str) -> dict[str, Any] | None:
        """Return a pod, or None if there is none."""
        answer = self._call(self._core.read_namespaced_pod, name)
        return None if answer is None else _object(answer)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Return the pods with the given labels."""
        answer = self._call(self._core.list_namespaced_pod, label_selector=selector)
        return [] if answer is None else list(_object(answer)["items"])

    def delete(self, name: str, *, grace_s: int | None = None) -> bool:
        """Ask for a pod's deletion; return whether there was a pod.

        Parameters
        ----------
        grace_s
            Seconds between SIGTERM and SIGKILL; default the pod's own.
        """
        return self._call(self._core.delete_namespaced_pod, name, grace_period_seconds=grace_s) is not None

    def log(self, name: str, lines: int) -> str | None:
        """Return the end of what a pod printed, or None if there is no such pod."""
        answer = self._call(self._core.read_namespaced_pod_log, name, tail_lines=lines)
        return None if answer is None else answer.decode(errors="replace")

    def _call(self, method: Any, *arguments: str, **options: Any) -> bytes | None:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        given = {name: value for name, value in options.items() if value is not None}
        given |= {"namespace": self._namespace, "_request_timeout": _TIMEOUT, "_preload_content": False}
        try:
            answer = method(*arguments, **given)
            status, reason, body = int(answer.status), answer.reason, bytes(answer.data)
        except ApiException as error:
            status, reason, body = int(error.status or 0), error.reason, error.body
        except (HTTPError, OSError) as error:
            raise StreamwardenError("KUBERNETES_UNREACHABLE", str(error)) from error
        if status == 404:
            return None
        if 200 <= status < 300:
            return body
        # 429 and 5xx pass.
        code: ErrorCode = "SUBMISSION_REFUSED" if 400 <= status < 429 else "KUBERNETES_UNREACHABLE"
        raise StreamwardenError(code, f"the API server answers {status} {reason}: {_message(body)}")


def open_api(server: str, namespace: str, context: str | None) -> PodApi:
    """Return the pods of a namespace. Contacts no server.

    Who this process is comes from the kubeconfig file (``KUBECONFIG``, ``~/.kube/config``), or in a pod without one
    from its service account: as with ``spark-submit``. The client renews tokens that expire.

    Parameters
    ----------
    server
        ``https://host:port``.
    context
        Of the kubeconfig file; default its current one.

    Raises
    ------
    StreamwardenError
        ``EXTRA_MISSING``; ``CONFIG_INVALID`` if there is neither file nor service account.
    """
    require_extra("kubernetes", "kubernetes")
    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [Path(one) for one in paths.split(os.pathsep) if Path(one).is_file()]
    # Its login may have been renewed.
    written = max((file.stat().st_mtime_ns for file in files), default=0)
    return _open(server, namespace, context, paths if files else None, written)


@lru_cache(maxsize=8)
def _open(server: str, namespace: str, context: str | None, files: str | None, _written: int) -> PodApi:
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if files is not None:
            config.load_kube_config(files, context=context, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        what = f"no login for the Kubernetes API server: {error}"
        remedy = (
            "Set KUBECONFIG, or write ~/.kube/config. `kubernetes.context` of the profile chooses one of its logins."
        )
        raise StreamwardenError("CONFIG_INVALID", what, remedy=remedy) from error
    renew = settings.refresh_api_key_hook

    def renewed(settings: Any) -> None:
        if renew is not None:
            renew(settings)
        # The profile names the server; the file of logins may have another address of it. A renewal sets both anew.
        settings.host = server
        settings.refresh_api_key_hook = renewed

    renewed(settings)
    # Who calls retries.
    settings.retries = False
    return PodApi(client.ApiClient(settings), namespace)


def _object(body: bytes) -> dict[str, Any]:
    try:
        return parse_object(body)
    except ValueError as error:
        raise StreamwardenError("KUBERNETES_UNREACHABLE", f"the API server's answer can't be read: {error}") from error


def _message(body: Any) -> str:
    """Return the message of a Status object, which is the body of a refusal."""
    try:
        return str(parse_object(body)["message"])
    except (TypeError, ValueError, KeyError):
        return "no message"
