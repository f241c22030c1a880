"""The Kubernetes API as JSON, for the tests' kubelet and for a look behind the launcher's back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx


class ApiError(Exception):
    """What the server refused, with its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Requests with one token; paths begin with /api or /apis.

    Every method raises :class:`ApiError` for a refusal, and httpx.HTTPError without an answer.
    """

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._client = httpx.Client(
            base_url=server,
            verify=str(authority),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(20, connect=5),
            trust_env=False,
        )

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._json(self._client.get(path, params=query))

    def items(self, path: str, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(path, **query)["items"]
        return found

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._json(self._client.post(path, json=body))

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        return self._json(self._client.patch(path, content=json.dumps(body), headers=kind))

    def delete(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._json(self._client.request("DELETE", path, json=body or {}))

    def watch(self, path: str, *, seconds: int, **query: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what is there and what happens to it, for so many seconds."""
        asked = {**query, "watch": "true", "timeoutSeconds": seconds}
        with self._client.stream("GET", path, params=asked, timeout=seconds + 10) as answer:
            if answer.status_code != 200:
                raise ApiError(answer.status_code, answer.read().decode())
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
                yield event["type"], event["object"]

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        found: dict[str, Any] = answer.json() if answer.content[:1] == b"{" else {}
        if answer.is_error:
            raise ApiError(answer.status_code, str(found.get("message")))
        return found
