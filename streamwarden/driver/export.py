"""Export a driver's metrics: pushed by OTLP over HTTP, or scraped by Prometheus.

Both run in their own threads. A slow or unreachable collector, or a port in use, only causes a warning.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from socketserver import BaseServer

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric

from streamwarden import __version__
from streamwarden.model.profile import MetricsSpec, OtlpSpec, PrometheusSpec

__all__ = ["Export", "open_export"]

_log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_QUIET_S = 600.0


@dataclass(frozen=True)
class Export:
    """The export of a driver's metrics.

    Parameters
    ----------
    provider
        Creates the meters.
    address
        host:port of the Prometheus endpoint; empty if there is none.
    closers
        Functions to call at the end.
    """

    provider: MeterProvider
    address: str
    closers: tuple[Callable[[], object], ...]

    def close(self, timeout: float) -> None:
        """Send the last values and stop. Waits at most `timeout` seconds, then abandons the rest."""

        def work() -> None:
            for close in self.closers:
                close()

        thread = threading.Thread(target=work, name="metrics-end", daemon=True)
        thread.start()
        thread.join(timeout)


def open_export(spec: MetricsSpec, job: str, incarnation: str) -> Export | None:
    """Open the exporters that the profile or the environment requests; None if there are none, or none can be opened.

    Never raises: a driver runs even without its metrics. Whether a collector responds is known only at the first
    export, and logged then.

    Parameters
    ----------
    spec
        The profile's metrics settings.
    job, incarnation
        Attributes of the resource.
    """
    readers: list[MetricReader] = []
    closers: list[Callable[[], object]] = []
    address = ""
    if spec.prometheus is not None:
        opened = _prometheus(spec.prometheus)
        if opened is not None:
            reader, address, close = opened
            readers.append(reader)
            closers.append(close)
    named = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if os.environ.get("OTEL_METRICS_EXPORTER", "otlp").strip().lower() != "otlp":
        # `none`, or an exporter that Streamwarden lacks. The profile's setting takes precedence.
        named = None
    if spec.otlp is not None or named is not None:
        try:
            readers.append(_otlp(spec.otlp))
        except Exception:
            # The exporter rejects a setting of the environment.
            _log.warning("metrics are not pushed", exc_info=True)
        else:
            _log.info("metrics are pushed by OTLP, %s", "as the profile says" if spec.otlp else f"since {named} is set")
    if not readers:
        return None
    resource = Resource.create(
        {
            # OTEL_SERVICE_NAME takes precedence; OTEL_RESOURCE_ATTRIBUTES are added.
            SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or "streamwarden",
            SERVICE_VERSION: __version__,
            SERVICE_INSTANCE_ID: incarnation,
            "job": job,
            "incarnation": incarnation,
        }
    )
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    return Export(provider, address, (provider.shutdown, *closers))


def _otlp(spec: OtlpSpec | None) -> MetricReader:
    # Imported here: with its HTTP client and messages it is a large part of a start's imports.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    quiet = _Seldom(_QUIET_S)
    for name in (OTLPMetricExporter.__module__, PeriodicExportingMetricReader.__module__):
        logging.getLogger(name).addFilter(quiet)
    if spec is None:
        return PeriodicExportingMetricReader(OTLPMetricExporter())
    endpoint = f"{spec.endpoint.rstrip('/')}/v1/metrics" if spec.endpoint else None
    return PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=endpoint, timeout=spec.timeout.total_seconds()),
        export_interval_millis=_milliseconds(spec.interval),
        export_timeout_millis=_milliseconds(spec.timeout),
    )


def _prometheus(spec: PrometheusSpec) -> tuple[MetricReader, str, Callable[[], object]] | None:
    registry = _OneAtATime()
    for port in range(spec.port, spec.port + spec.ports):
        try:
            server, _ = start_http_server(port, spec.host, registry)
        except OSError as error:
            trouble = f"{spec.host}:{port}: {error}"
            continue
        address = f"{_reached_by(spec.host)}:{server.server_port}"
        _log.info("metrics for Prometheus on http://%s/metrics", address)
        # target_info carries the resource; the scope would only mark every metric as Streamwarden's.
        return PrometheusMetricReader(registry=registry, scope_info_enabled=False), address, partial(_end, server)
    _log.warning("no metrics for Prometheus: %d ports tried, last error: %s", spec.ports, trouble)
    return None


def _end(server: BaseServer) -> None:
    server.shutdown()
    server.server_close()


def _reached_by(host: str) -> str:
    """Return the name by which other machines reach the host that a server listens on."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


class _OneAtATime(CollectorRegistry):
    """A registry that answers scrapes one after another.

    The reader passes values through a queue that all scrapes share: of two concurrent scrapes, one would get both
    answers and the other none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scraping = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._scraping:
            return list(super().collect())


class _Seldom(logging.Filter):
    """Rate-limits equal messages: without it, an unreachable collector is logged at each export."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._said.get(str(record.msg), -self._seconds) < self._seconds:
            return False
        self._said[str(record.msg)] = now
        return True


def _milliseconds(span: timedelta) -> float:
    return span.total_seconds() * 1000
