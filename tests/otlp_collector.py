"""A collector for tests: a real HTTP server that takes OTLP's protobuf."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Collector:
    """Listens on a free port while used as a context.

    Parameters
    ----------
    delay
        Seconds to wait before each answer.
    status
        The answer's.
    """

    def __init__(self, *, delay: float = 0, status: int = 200) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.released = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                collector.released.wait(delay)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def newest(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the newest request's resource attributes, and its metrics by name."""
        (resource,) = self.requests[-1].resource_metrics
        attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
        return attributes, {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}

    def await_sum(self, name: str, value: float, timeout: float = 30) -> tuple[dict[str, str], dict[str, Any]]:
        """Wait for a counter to arrive with a value."""

        def there() -> bool:
            metric = self.newest()[1].get(name) if self.requests else None
            return metric is not None and sum(p.as_int + p.as_double for p in metric.sum.data_points) == value

        wait_until(there, timeout)
        return self.newest()


def wait_until(condition: Callable[[], object], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
