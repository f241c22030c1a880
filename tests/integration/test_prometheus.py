"""A real Prometheus with the shipped configuration, and a real exporter: targets, rules and the dashboard's queries.

Times are shortened: scrapes and evaluations every half second, and no alert waits. tests/unit/repository/alerts.yml has
the times.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamwarden.driver.export import open_export
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.model.profile import MetricsSpec
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Exit
from streamwarden.operations.target_file import TargetFile
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision.health_rules import RULES as HEALTH_RULES
from streamwarden.supervision.health_rules import Finding, Health, Level
from tests.batches import make_place
from tests.monitoring import MONITORING, RULES, alerts, program, queries, whole_batch, write_running
from tests.ports import free_port

pytestmark = pytest.mark.integration


class Server:
    """A Prometheus on loopback."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{query}", timeout=10) as answer:
            found = json.loads(answer.read())
        assert found["status"] == "success" and not found.get("warnings"), found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found


def until(condition: Callable[[], object], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    last: object = None
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError as error:
            last = error
        time.sleep(0.2)
    pytest.fail(f"waited for {what}: {last}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a driver in trouble, and one that is down, to a Prometheus that finds both by their documents."""
    binary = program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    address = f"127.0.0.1:{free_port()}"
    for name in ("prometheus.yml", "rules.yml"):
        text = (MONITORING / name).read_text(encoding="utf-8")
        text = re.sub(r"\b(15|30)s$", "500ms", text, flags=re.MULTILINE)
        text = re.sub(r"for: \d+m$", "for: 0s", text, flags=re.MULTILINE)
        (folder / name).write_text(text.replace("127.0.0.1:9090", address), encoding="utf-8")
    (folder / "targets").mkdir()

    export = open_export(MetricsSpec.model_validate({"prometheus": {}}), "lamp", "i1")
    assert export is not None
    findings = tuple(Finding(rule, Level.CRITICAL, "", 1, 1) for rule in HEALTH_RULES if rule != "late_rows")
    health = Health((*findings, Finding("late_rows", Level.WARN, "", 1, 1)))
    metrics = DriverMetrics(
        export.provider, "lamp", lambda: DriverView(DriverState.RETRYING, 2, 1, False), lambda: health
    )
    workspace = make_place(folder / "place")
    for job, at in (("lamp", export.address), ("tick", "127.0.0.1:9")):
        spec = f"{{name: {job}, module: m, source: {{kind: files, path: in}}, sinks: [{{table: {job}, mode: append}}]}}"
        (workspace.config / "jobs" / f"{job}.yaml").write_text(spec)
        write_running(workspace, job, at)
    JobDocuments(workspace.storage, "tick").exit("i1").write(Exit(incarnation="i1", at=utc_now(), outcome="failed"))
    TargetFile(workspace, folder / "targets" / "drivers.json").write()

    with (folder / "log").open("wb") as log:
        words = [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ]
        process = subprocess.Popen([binary, *words], stdout=log, stderr=log)
        try:
            found = Server(address)
            until(lambda: found.query('up{job="lamp"} == 1'), f"a scrape: {folder}/log")
            # What counters were before, and then what they became: a rate needs both.
            for number in range(3):
                metrics.batch(whole_batch(number))
                metrics.failed_try()
                time.sleep(1)
            until(lambda: found.query("job:streamwarden_commit_seconds:mean30m"), "the rules")
            until(lambda: found.query('ALERTS{alertstate="firing", alertname="StreamwardenTriesFailing"}'), "alerts")
            yield found
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()
                export.close(10)


def test_drivers_are_found_and_one_is_down(server: Server) -> None:
    targets = server.get("targets")["activeTargets"]
    found = {(one["scrapePool"], one["labels"]["job"]): one["health"] for one in targets}
    assert found == {
        ("streamwarden", "lamp"): "up",
        ("streamwarden", "tick"): "down",
        ("prometheus", "prometheus"): "up",
    }
    # The job's name is the label, and not that of the scrape; no label of the driver was put aside for Prometheus' own.
    (rows,) = server.query("streamwarden_rows_in_total")
    assert {name: rows["metric"][name] for name in ("profile", "job")} == {"profile": "test", "job": "lamp"}
    assert not [name for name in rows["metric"] if name.startswith("exported_")]


def test_rules_are_evaluated_and_alerts_fire(server: Server) -> None:
    rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(RULES)
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["name"]: "ok" for rule in rules}
    firing = {(one["labels"]["alertname"], one["labels"].get("job")): one for one in server.get("alerts")["alerts"]}
    others = {"StreamwardenDriverDown", "StreamwardenTargetsStale", "StreamwardenCommitTimeGrowing"}
    assert set(firing) == {(name, "lamp") for name in set(alerts()) - others} | {("StreamwardenDriverDown", "tick")}
    for one in firing.values():
        texts = list(one["annotations"].values())
        assert texts and not any(sign in text for text in texts for sign in ("{{", "<no value>", "%!", "<error"))


@pytest.mark.parametrize(("panel", "query"), queries())
def test_every_panel_has_data(server: Server, panel: str, query: str) -> None:
    assert server.query(query), f"{panel}: {query}"


def test_the_variable_lists_the_jobs(server: Server) -> None:
    assert server.get("label/job/values", **{"match[]": 'up{profile!=""}'}) == ["lamp", "tick"]


def test_the_age_of_the_list_is_known(server: Server) -> None:
    (age,) = server.query("time() - max(prometheus_sd_file_mtime_seconds)")
    assert 0 < float(age["value"][1]) < 600
