"""Metrics that leave the process: pushed to a real HTTP server, scraped from a real port."""

from __future__ import annotations

import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamwarden.driver.export import Export, _OneAtATime, _Seldom, open_export
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.model.profile import MetricsSpec
from streamwarden.model.status import DriverState
from streamwarden.supervision.health_rules import Health
from tests import otlp_collector
from tests.batches import made_batch
from tests.http_receiver import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "METRICS_ENDPOINT", "TIMEOUT", "HEADERS"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    for name in (
        "OTEL_METRICS_EXPORTER",
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_METRIC_EXPORT_INTERVAL",
    ):
        monkeypatch.delenv(name, raising=False)


def opened(**spec: object) -> tuple[Export, DriverMetrics]:
    export = open_export(MetricsSpec.model_validate(spec), "lamp", "i1")
    assert export is not None
    view = DriverView(DriverState.RUNNING, 2, 0, False)
    return export, DriverMetrics(export.provider, "lamp", lambda: view, Health)


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_nothing_is_opened_unless_asked_for() -> None:
    assert open_export(MetricsSpec(), "lamp", "i1") is None


def test_a_collector_gets_figures_resource_and_units() -> None:
    with otlp_collector.Collector() as collector:
        export, metrics = opened(otlp={"endpoint": collector.endpoint, "interval": "100ms"})
        metrics.batch(made_batch(1))
        attributes, found = collector.await_sum("streamwarden.batches", 1)
        # Right before the end: sent by the end itself.
        metrics.batch(made_batch(2))
        export.close(10)
        collector.await_sum("streamwarden.batches", 2, timeout=0.1)
    assert set(collector.paths) == {"/v1/metrics"}
    assert attributes["service.name"] == "streamwarden" and attributes["service.instance.id"] == "i1"
    assert (attributes["job"], attributes["incarnation"]) == ("lamp", "i1")
    duration = found["streamwarden.batch.duration"]
    assert duration.unit == "s"
    (point,) = duration.histogram.data_points
    assert (point.count, point.sum) == (1, 2.5)
    assert dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))[2.5] == 1


def test_the_standard_variables_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_collector.Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "streams")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=lights")
        export, metrics = opened()
        metrics.batch(made_batch(1))
        attributes, _ = collector.await_sum("streamwarden.batches", 1)
        export.close(10)
    assert (attributes["service.name"], attributes["team"], attributes["job"]) == ("streams", "lights", "lamp")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert open_export(MetricsSpec(), "lamp", "i1") is None


@pytest.mark.parametrize("trouble", ["hangs", "refuses", "is away"])
def test_a_bad_collector_delays_neither_a_batch_nor_the_end(trouble: str) -> None:
    collector = otlp_collector.Collector(delay=60 if trouble == "hangs" else 0, status=500)
    with collector:
        endpoint = "http://127.0.0.1:9" if trouble == "is away" else collector.endpoint
        export, metrics = opened(otlp={"endpoint": endpoint, "interval": "100ms", "timeout": "1m"})
        if trouble != "is away":
            wait_until(lambda: collector.requests)
        began = time.monotonic()
        for batch in range(500):
            metrics.batch(made_batch(batch))
        metrics.failed_try()
        assert time.monotonic() - began < 20
        began = time.monotonic()
        export.close(0.5)
        assert time.monotonic() - began < 20


def test_a_variable_that_makes_no_sense_costs_the_export_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    export = open_export(MetricsSpec.model_validate({"prometheus": {}}), "lamp", "i1")
    assert export is not None and export.address
    export.close(5)


def test_prometheus_names_units_and_labels() -> None:
    export, metrics = opened(prometheus={})
    try:
        host, port = export.address.split(":")
        assert host == "127.0.0.1" and int(port) > 0
        metrics.batch(made_batch(7))
        lines = scrape(export.address).splitlines()
    finally:
        export.close(10)
    for line in (
        'streamwarden_batches_total{job="lamp"} 1.0',
        'streamwarden_rows_late_total{job="lamp"} 3.0',
        'streamwarden_batch_duration_seconds_bucket{job="lamp",le="2.5"} 1.0',
        'streamwarden_batch_duration_seconds_sum{job="lamp"} 2.5',
        'streamwarden_watermark_lag_seconds{job="lamp"} 1800.5',
        'streamwarden_state_rows{job="lamp",operator="1",operator_name="dedupe"} 20.0',
        'streamwarden_rocksdb_sst_size_bytes{job="lamp",operator="0",operator_name="stateStoreSave"} 77.0',
        'streamwarden_source_pending{job="lamp",unit="files"} 4.0',
        'streamwarden_driver_state{job="lamp",state="running"} 1.0',
        "# TYPE streamwarden_batches_total counter",
        "# TYPE streamwarden_batch_duration_seconds histogram",
    ):
        assert line in lines
    (target,) = [line for line in lines if line.startswith("target_info{")]
    assert 'incarnation="i1"' in target and 'service_name="streamwarden"' in target
    with pytest.raises(URLError, match="refused"):
        scrape(export.address)


def test_scrapes_at_the_same_time_are_answered_one_after_the_other() -> None:
    # The reader's figures pass through a queue that all scrapes share; too seldom mixed up to be seen from outside.
    inside, most = 0, 0

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1
            yield GaugeMetricFamily("lamps", "", 3)

    registry = _OneAtATime()
    registry.register(Slow())
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: generate_latest(registry).count(b"lamps 3.0"), range(16)))
    assert (most, set(answers)) == (1, {1})


def test_a_taken_port_is_passed_over_and_none_left_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert open_export(MetricsSpec.model_validate({"prometheus": {"port": port}}), "lamp", "i1") is None
        assert f"127.0.0.1:{port}" in caplog.text and "no metrics for Prometheus" in caplog.text
        export, _ = opened(prometheus={"port": port, "ports": 20})
        try:
            assert port < int(export.address.split(":")[1]) < port + 20
        finally:
            export.close(10)


def test_one_that_listens_everywhere_is_named_by_its_host() -> None:
    export, _ = opened(prometheus={"host": "0.0.0.0"})
    try:
        assert export.address.split(":")[0] == socket.gethostname()
    finally:
        export.close(10)


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with otlp_collector.Collector() as collector:
        export, _ = opened(prometheus={}, otlp={"endpoint": collector.endpoint, "interval": "1h"})
        export.close(10)
    wait_until(lambda: set(threading.enumerate()) <= before, 5)


def test_the_same_trouble_is_said_once_in_a_while() -> None:
    quiet = _Seldom(60)
    one, other = (logging.makeLogRecord({"msg": text}) for text in ("away %s", "hangs"))
    assert [quiet.filter(one), quiet.filter(one), quiet.filter(other)] == [True, False, True]
    quiet._said[str(one.msg)] -= 60
    assert quiet.filter(one)
