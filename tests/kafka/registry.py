"""A schema registry on loopback, with the routes that a reader of Confluent's wire format needs."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """Subjects with versions, each of a schema with an id that is unique among all subjects."""

    def __init__(self) -> None:
        self.subjects: dict[str, list[dict[str, Any]]] = {}
        self.deleted: set[tuple[str, int]] = set()
        self._ids = 0
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = registry._answer(self.path)
                content = json.dumps(found if found is not None else {"error_code": 40401}).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def register(self, subject: str, schema: dict[str, Any], **more: Any) -> int:
        """Add a version to a subject; return its schema's id."""
        self._ids += 1
        versions = self.subjects.setdefault(subject, [])
        version = len(versions) + 1
        versions.append({"subject": subject, "version": version, "id": self._ids, "schema": json.dumps(schema), **more})
        return self._ids

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str) -> Any:
        asked = re.fullmatch(r"/subjects/([^/]+)/versions(?:/(\d+))?(\?deleted=true)?", path)
        if asked is None or asked[1] not in self.subjects:
            return None
        there = {
            one["version"]: one
            for one in self.subjects[asked[1]]
            if asked[3] or (asked[1], one["version"]) not in self.deleted
        }
        return there.get(int(asked[2])) if asked[2] else list(there)
