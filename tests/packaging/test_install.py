"""The wheel without extras in an environment of its own: command line and driver need neither Airflow nor boto3."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).resolve().parents[2]
# The set-up's own, which reaches the package index as the set-up did.
UV = ROOT / ".tools" / "bin" / "uv"

EXTRAS = ("airflow", "boto3", "asyncpg", "psycopg2", "confluent_kafka", "openlineage")

# Everything but what an extra is for, in one process.
IMPORT_ALL = """
import importlib, pkgutil, streamwarden
named = [one.name for one in pkgutil.walk_packages(streamwarden.__path__, "streamwarden.", onerror=lambda _: None)]
skipped = ("streamwarden.airflow", "streamwarden.storage.s3", "streamwarden.storage.s3_client",
           "streamwarden.quality.lineage_events")
for name in named:
    if not name.startswith("streamwarden.airflow") and name not in skipped and not name.endswith("__main__"):
        importlib.import_module(name)
        print(name)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Neither the checkout nor its environment may lend a package; Python also looks in the current folder.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "STREAMWARDEN_"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the library's wheel, and the locked versions of what it depends on."""
    venv = tmp_path_factory.mktemp("install") / "venv"
    sync = [UV, "sync", "--locked", "--no-dev", "--no-editable", "--python", sys.executable]
    # From uv's cache, which the set-up has filled. Asked again, the index may have pyspark built anew, for minutes.
    done = run(*sync, "--offline", cwd=ROOT, UV_PROJECT_ENVIRONMENT=str(venv))
    if done.returncode != 0:
        done = run(*sync, cwd=ROOT, UV_PROJECT_ENVIRONMENT=str(venv))
    assert done.returncode == 0, done.stderr
    done = run(UV, "pip", "check", "--python", venv / "bin" / "python", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return venv / "bin"


def test_no_extra_is_there(programs: Path, tmp_path: Path) -> None:
    for name in EXTRAS:
        done = run(programs / "python", "-c", f"import {name}", cwd=tmp_path)
        assert done.returncode == 1 and f"ModuleNotFoundError: No module named '{name}'" in done.stderr


def test_the_command_line_answers(programs: Path, tmp_path: Path) -> None:
    done = run(programs / "streamwarden", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"streamwarden {version('streamwarden')}\n"), done.stderr
    done = run(programs / "streamwarden", "--help", cwd=tmp_path)
    assert done.returncode == 0 and " deploy " in done.stdout, done.stderr


def test_all_but_the_extras_imports(programs: Path, tmp_path: Path) -> None:
    done = run(programs / "python", "-c", IMPORT_ALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"streamwarden.driver.runner", "streamwarden.cli", "streamwarden.operations.restore"} <= {
        *done.stdout.split()
    }


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("s3", ["streamwarden", "status", "--profile", "s3"]),
        ("airflow", ["python", "-m", "streamwarden.devserver", "up", "--home", "home"]),
    ],
)
def test_a_missing_extra_is_named(programs: Path, tmp_path: Path, extra: str, command: list[str]) -> None:
    program, *arguments = command
    done = run(programs / program, *arguments, cwd=tmp_path, STREAMWARDEN_CONFIG=str(ROOT / "config"))
    assert done.returncode == 2, done.stderr
    assert "[EXTRA_MISSING]" in done.stderr and f'pip install "streamwarden[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_an_operator_without_airflow_names_the_extra(programs: Path, tmp_path: Path) -> None:
    done = run(programs / "python", "-c", "import streamwarden.airflow.operators.deploy", cwd=tmp_path)
    assert done.returncode == 1 and 'pip install "streamwarden[airflow]"' in done.stderr
