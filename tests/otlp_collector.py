"""A collector for tests: a real HTTP server that takes OTLP's protobuf."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.http_receiver import HttpReceiver, wait_until


class Collector(HttpReceiver):
    """Listens on a free port while used as a context."""

    @property
    def requests(self) -> list[ExportMetricsServiceRequest]:
        return [ExportMetricsServiceRequest.FromString(body) for body in self.bodies]

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
