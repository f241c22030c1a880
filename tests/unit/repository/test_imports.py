"""The house's import rules: ``.importlinter`` for the packages, and here for dags/, which is none."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]

# A DAG file is wiring: what it does is in streamwarden.airflow.
DAG_MAY_IMPORT = ("airflow", "streamwarden.airflow", "streamwarden.store.config")


def test_packages_keep_the_contracts() -> None:
    # A process of its own: the linter puts the checkout on sys.path and keeps state in module globals.
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def imported(source: str) -> list[str]:
    """Return what a module imports, in full; relative imports as they are written."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("." * node.level + (node.module or ""))
    return names


def refused(source: str) -> list[str]:
    """Return what a DAG file imports and may not."""
    return [
        name
        for name in imported(source)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == allowed or name.startswith(f"{allowed}.") for allowed in DAG_MAY_IMPORT)
    ]


def test_dags_import_only_wiring() -> None:
    files = sorted((ROOT / "dags").rglob("*.py"))
    assert files
    found = {path.name: refused(path.read_text(encoding="utf-8")) for path in files}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pyspark",
        "from streamwarden.driver.pipeline.sink import DeltaSink",
        "from streamwarden.model.spec import JobSpec",
        "from . import other",
        "def f():\n    import pandas",
    ],
)
def test_what_a_dag_may_not_import_is_seen(line: str) -> None:
    assert refused(line)


@pytest.mark.parametrize(
    "line", ["from airflow.sdk import DAG", "import streamwarden.airflow", "from datetime import timedelta"]
)
def test_what_a_dag_may_import_is_let_through(line: str) -> None:
    assert not refused(line)
