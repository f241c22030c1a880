"""The house's import rules: ``.importlinter`` for the packages, and here for dags/, which is none."""

from __future__ import annotations

import ast
import os
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


HEAVY = ("deltalake", "pyarrow", "pyspark", "great_expectations", "pandas")
PARSES = f"""
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path)
    print(path, *(name for name in {HEAVY} if name in sys.modules))
"""


def test_parsing_a_dag_loads_no_library_of_tables(tmp_path: Path) -> None:
    """Airflow parses each file twice a minute, and each task's process parses its file once more."""
    files = sorted(map(str, (ROOT / "dags").rglob("*.py")))
    place = {"AIRFLOW_HOME": str(tmp_path), "STREAMWARDEN_ROOT": str(tmp_path / "root")}
    command = [sys.executable, "-c", PARSES, *files]
    done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == files


def test_the_command_line_starts_without_libraries_of_tables_and_leaves_the_environment() -> None:
    """A variable that it set would keep it from taking a spare, which another process has ordered."""
    code = (
        "import os, sys; before = dict(os.environ); import streamwarden.cli.app;"
        " assert dict(os.environ) == before;"
        " print(sorted({'great_expectations', 'polars', 'pyspark'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def _given(module: str) -> set[str] | None:
    """Return the names that a module of the library has at its top level; None where it is none of the library's."""
    roots = {"streamwarden": ROOT, "spark_jobs": ROOT, "nyc_taxi": ROOT / "examples" / "nyc_taxi" / "src"}
    root = roots.get(module.split(".")[0])
    if root is None:
        return None
    path = root / module.replace(".", "/")
    submodules = {one.stem for one in path.glob("*.py")} | {one.parent.name for one in path.glob("*/__init__.py")}
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert file.is_file(), f"there is no module {module}"
    names = set(submodules)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


@pytest.mark.parametrize("folder", ["dags", "plugins", "benchmarks", "docker", "scripts", "tests", "examples"])
def test_what_is_imported_is_there(folder: str) -> None:
    """mypy looks at the library alone; a DAG that cannot be imported would show in Airflow only."""
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and (names := _given(node.module)) is not None:
                missing += [
                    f"{path.relative_to(ROOT)}: {node.module}.{a.name}" for a in node.names if a.name not in names
                ]
    assert missing == []
