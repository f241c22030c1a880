"""A job's module is loaded before a deploy changes anything, where drivers load it likewise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.operations.module_load import check_module
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

JOB = {
    "name": "orders",
    "module": "made_elsewhere.gone",
    "source": {"kind": "delta", "table": "raw"},
    "sinks": [{"table": "orders", "mode": "append"}],
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    for folder in ("jobs", "profiles"):
        (tmp_path / "config" / folder).mkdir(parents=True)
    (tmp_path / "config" / "jobs" / "orders.yaml").write_text(yaml.safe_dump(JOB))
    place: dict[str, Any] = {"name": "test", "root": str(tmp_path / "root")}
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump(place))
    (tmp_path / "config" / "profiles" / "hosts.yaml").write_text(
        yaml.safe_dump({**place, "name": "hosts", "launcher": "host"})
    )
    return open_workspace("test", config=tmp_path / "config")


@pytest.mark.parametrize("command", ["diff", "deploy"])
def test_a_fault_of_the_module_ends_the_command_before_anything_is_written(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(workspace.config))
    done = CliRunner().invoke(app, [command, "orders", "--profile", "test"])
    assert done.exit_code == 2
    assert "config/jobs/orders.yaml: module: there is no module made_elsewhere.gone" in done.output
    assert workspace.storage.list("control") == []


def test_where_drivers_run_elsewhere_or_are_stood_in_for_it_is_theirs_to_find(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = open_workspace("hosts", config=workspace.config)
    check_module(hosts, hosts.job("orders"))
    monkeypatch.setenv("STREAMWARDEN_DRIVER_MODULE", "a.stand_in")
    check_module(workspace, workspace.job("orders"))
