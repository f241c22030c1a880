"""config/monitoring: rules and dashboard ask for what drivers export, and are described in docs/metrics.md.

Prometheus' own checks need ``promtool``, of Debian's package ``prometheus``. What a running Prometheus makes of the
files is tested in tests/integration/test_prometheus.py.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.driver.export import open_export
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.model.profile import MetricsSpec
from streamwarden.model.status import DriverState
from streamwarden.supervision import health_rules
from streamwarden.supervision.health_rules import Health
from tests.monitoring import DASHBOARD, MONITORING, PANELS, RULES, alerts, program, queries, whole_batch

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]
PROMETHEUS: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
TESTS = Path(__file__).with_name("alerts.yml")

TARGET = {"profile", "job", "instance"}
"""Labels of a driver's target, which Prometheus adds to each of its samples."""

OWN: dict[str, set[str]] = {
    "up": set(),
    "ALERTS": {"alertname", "alertstate", "severity"},
    "prometheus_sd_file_mtime_seconds": {"filename"},
    **{rule["record"]: set() for rule in RULES if "record" in rule},
}
"""Metrics that Prometheus makes; test_prometheus.py asks a real one for each."""

WORDS = {
    "absent",
    "and",
    "avg_over_time",
    "by",
    "count",
    "increase",
    "histogram_quantile",
    "last_over_time",
    "max",
    "or",
    "rate",
    "sum",
    "time",
    "vector",
}
"""PromQL's own."""

EXPRESSIONS = [*queries(), *((rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES)]

NAME = re.compile(r"(?<![\w:])[a-zA-Z_:][\w:]*")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the names of all samples that a driver exports, each with its labels, as they are scraped."""
    export = open_export(MetricsSpec.model_validate({"prometheus": {}}), "lamp", "i1")
    assert export is not None
    try:
        view = DriverView(DriverState.RUNNING, 1, 0, False)
        DriverMetrics(export.provider, "lamp", lambda: view, Health).batch(whole_batch(0))
        with urllib.request.urlopen(f"http://{export.address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        export.close(10)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    assert "streamwarden_batch_duration_seconds_bucket" in found
    return found


def metrics_of(expression: str) -> set[str]:
    """Return the names in a PromQL expression that are none of PromQL's own."""
    bare = GROUPING.sub("", re.sub(r"\[\w+\]", "", SELECTOR.sub(r"\1", expression)))
    assert '"' not in bare and "{" not in bare, bare
    return {name for name in NAME.findall(bare) if name not in WORDS}


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_every_metric_and_label_exists(title: str, expression: str, exported: dict[str, set[str]]) -> None:
    known = {**exported, **OWN}
    names = metrics_of(expression)
    assert names and names <= set(known), f"{title}: {names - set(known)}"
    for name, matchers in SELECTOR.findall(expression):
        labels = {label for label, _, _ in MATCHER.findall(matchers)}
        assert labels and labels <= known[name] | TARGET, f"{title}: {name}{{{matchers}}}"
    grouped = {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}
    assert grouped <= TARGET.union(*(known[name] for name in names)), title


def test_the_check_of_metrics_and_labels_sees_what_it_is_for(exported: dict[str, set[str]]) -> None:
    for wrong in ("rate(streamwarden_rows_in[5m])", 'up{profil!=""}', "sum by (unti) (streamwarden_source_pending)"):
        with pytest.raises(AssertionError):
            test_every_metric_and_label_exists("wrong", wrong, exported)


def test_health_rules_that_are_named_exist() -> None:
    named = {
        rule
        for _, expression in EXPRESSIONS
        for label, _, value in MATCHER.findall(expression)
        if label == "rule"
        for rule in value.split("|")
    }
    assert named and named <= set(health_rules.RULES)


def test_the_dashboard_shows_every_metric(exported: dict[str, set[str]]) -> None:
    shown = {name for _, expression in queries() for name in metrics_of(expression)}
    families = {
        re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exported if name.startswith("streamwarden_")
    }
    assert families <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


# -- the dashboard ---------------------------------------------------------------------------------------------------


def test_panels_are_described_and_have_units() -> None:
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert [title for title in titles if "$job" in title] and titles[0] == "Fleet"


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_fields_that_are_renamed_and_coloured_exist() -> None:
    for panel in PANELS:
        (renamed,) = [
            one["options"]["renameByName"] for one in panel.get("transformations", []) if one["id"] == "organize"
        ] or [{}]
        values = {f"Value #{target['refId']}" for target in panel["targets"]}
        assert {name for name in renamed if name.startswith("Value #")} in (set(), values), panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in renamed.values(), panel["title"]


def test_grafana_is_given_what_the_dashboard_names() -> None:
    (source,) = yaml.safe_load((MONITORING / "grafana" / "datasource.yml").read_text(encoding="utf-8"))["datasources"]
    (job,) = DASHBOARD["templating"]["list"]
    used = [one["datasource"] for panel in PANELS for one in (panel, *panel["targets"])] + [job["datasource"]]
    assert all(one == {"type": source["type"], "uid": source["uid"]} for one in used)
    assert source["url"] == "http://prometheus:9090" and "prometheus" in SERVICES
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((MONITORING / "grafana" / "dashboards.yml").read_text(encoding="utf-8"))["providers"]
    grafana = SERVICES["grafana"]
    assert f"./config/monitoring/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/streamwarden.json"


def test_prometheus_reads_the_list_that_is_written() -> None:
    (scrape,) = [one for one in PROMETHEUS["scrape_configs"] if one["job_name"] == "streamwarden"]
    assert scrape["honor_labels"] is True
    ((pattern,),) = [one["files"] for one in scrape["file_sd_configs"]]
    words = SERVICES["metrics-targets"]["command"]
    written = Path(words[words.index("--output") + 1])
    mounted = dict(mount.split(":")[:2] for mount in SERVICES["metrics-targets"]["volumes"])
    read = dict(mount.split(":")[:2] for mount in SERVICES["prometheus"]["volumes"])
    (volume,) = [name for name, folder in mounted.items() if folder == str(written.parent)]
    assert (Path(read[volume]) / written.name).match(f"/etc/prometheus/{pattern}")
    assert read["./config/monitoring/prometheus.yml"] == "/etc/prometheus/prometheus.yml"
    for name in PROMETHEUS["rule_files"]:
        assert read[f"./config/monitoring/{name}"] == f"/etc/prometheus/{name}"


# -- the rules -------------------------------------------------------------------------------------------------------


def test_every_alert_waits_and_says_what_it_means() -> None:
    assert alerts()
    for name, rule in alerts().items():
        assert name.startswith("Streamwarden") and re.fullmatch(r"\d+m", rule["for"]), name
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert set(rule["annotations"]) == {"summary", "remedy"}, name
        assert rule["annotations"]["summary"].endswith("."), name


def test_remedies_name_pages_and_commands_that_exist() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for name, rule in alerts().items():
        remedy = rule["annotations"]["remedy"].replace("{{ $labels.job }}", "lamp")
        (page,) = re.findall(r"docs/[\w-]+\.md", remedy)
        assert (ROOT / page).is_file(), name
        for command in re.findall(r"`streamwarden ([^`]+)`", remedy):
            assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command
        for section in re.findall(r"docs/operations\.md, `(\w+)`", remedy):
            assert f"**`{section}`.**" in operations, name
        for heading in re.findall(r'docs/gate\.md, "([^"]+)"', remedy):
            assert f"## {heading}\n" in (ROOT / page).read_text(encoding="utf-8"), name


def test_every_alert_is_listed() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (\w+), (\w+) \|", page, re.MULTILINE)
    assert listed == [(name, rule["labels"]["severity"], rule["for"]) for name, rule in alerts().items()]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [
        case for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"] for case in test["alert_rule_test"]
    ]
    for fires in (True, False):
        assert {case["alertname"] for case in cases if bool(case.get("exp_alerts")) is fires} == set(alerts())


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", str(MONITORING / "prometheus.yml")),
        ("check", "rules", "--lint=all", "--lint-fatal", str(MONITORING / "rules.yml")),
        ("test", "rules", str(TESTS)),
    ],
    ids=["config", "rules", "alerts"],
)
def test_promtool_finds_nothing(words: tuple[str, ...]) -> None:
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
