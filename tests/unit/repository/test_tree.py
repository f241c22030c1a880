"""What may and may not be in the repository, and that its configuration loads."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from streamwarden.store.config import job_names, load_alerts, load_job, load_profile

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "config"
PROFILES = sorted(path.stem for path in (CONFIG / "profiles").glob("*.yaml"))

DATA_SUFFIXES = {".arrow", ".avro", ".csv", ".db", ".jar", ".jsonl", ".orc", ".parquet", ".sqlite", ".tsv", ".whl"}
SMALL = 5_000
LARGE = 500_000

# Its format carries the address of every package; the lock is made by uv, and checked by `uv lock --check`.
LOCK = "uv.lock"


@cache
def tracked() -> tuple[Path, ...]:
    """Return what is or would be committed, so that a mistake shows before the commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    paths = [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]
    assert paths
    return tuple(paths)


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in tracked():
        if path.name == LOCK:
            continue
        try:
            found.append((path, (ROOT / path).read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def binary(path: Path) -> bool:
    """Say whether a file is not text, as git decides it. Generated trips were once committed, without a suffix."""
    with (ROOT / path).open("rb") as opened:
        return b"\0" in opened.read(8000)


def test_no_data_is_committed() -> None:
    sizes = {path: (ROOT / path).stat().st_size for path in tracked()}
    data = [
        str(path)
        for path, size in sizes.items()
        if size > SMALL and path.suffix != ".png" and (path.suffix in DATA_SUFFIXES or binary(path))
    ]
    large = [str(path) for path, size in sizes.items() if size > LARGE and path.name != LOCK]
    assert (data, large) == ([], [])


def test_no_file_is_named_after_nothing() -> None:
    vague = {"common", "helper", "helpers", "misc", "util", "utils"}
    assert [str(path) for path in tracked() if path.stem in vague] == []


# Where a checkout may stand too, and which the project's files name for good reasons; the last is the image's.
SHARED = {"/opt", "/opt/streamwarden", "/srv", "/tmp", "/usr/src", "/var", "/var/tmp"}


def private_paths() -> re.Pattern[str]:
    """Return a pattern for paths of the machine that this runs on, and of anybody's home."""
    # A checkout straight below the root has a parent that every path begins with.
    own = {str(folder) for folder in (ROOT, ROOT.parent, Path.home()) if len(folder.parts) > 1} - SHARED
    # Written in pieces, so that this file doesn't hold what it looks for.
    homes = "/" + "(?:home|Users)" + r"/[a-z]\w*"
    # Not inside a longer path or word: var/tmp is no /tmp.
    return re.compile(r"(?<![\w.$}/-])(?:" + "|".join([*map(re.escape, sorted(own)), homes]) + r")(?![\w-])")


def test_no_path_of_a_machine() -> None:
    pattern = private_paths()
    found = [f"{path}: {match[0]}" for path, text in texts() for match in pattern.finditer(text)]
    assert found == []


# An address that packages are fetched from says so in its path, whoever's it is.
REGISTRY = re.compile(r"https?://[^\s\"'<>)`]*(?:/simple\b|maven2|registry|artifactory|nexus|/goproxy|go-proxy)", re.I)


def test_no_registry_is_named() -> None:
    found = [f"{path}: {match[0]}" for path, text in texts() for match in REGISTRY.finditer(text)]
    assert found == []


def test_the_patterns_see_what_they_are_for() -> None:
    host = "https:" + "//packages.invalid"
    assert REGISTRY.search(f"index-url = {host}/simple/") and REGISTRY.search(f"{host}/maven2/io")
    assert not REGISTRY.search("https:" + "//spark.apache.org/docs")
    pattern = private_paths()
    assert pattern.search("see " + "/ho" + "me/somebody/notes")
    assert not pattern.search("var" + str(ROOT.parent) + "x")
    if str(ROOT) not in SHARED:
        assert pattern.search(f"cd {ROOT}/docs")


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_loads_and_every_job_under_it(profile: str) -> None:
    loaded = load_profile(profile, config=CONFIG)
    assert job_names(CONFIG)
    for name in job_names(CONFIG):
        assert load_job(name, config=CONFIG, profile=loaded).name == name


def test_every_yaml_of_the_configuration_is_read_by_somebody() -> None:
    known = {CONFIG / "profiles" / f"{name}.yaml" for name in PROFILES}
    known |= {CONFIG / "jobs" / f"{name}.yaml" for name in job_names(CONFIG)}
    assert load_alerts(CONFIG).notifiers == ()
    known.add(CONFIG / "alerts.yaml")
    # Prometheus and Grafana read these: test_monitoring.py.
    monitoring = CONFIG / "monitoring"
    assert {path for path in CONFIG.rglob("*") if path.is_file() and not path.is_relative_to(monitoring)} == known


def test_every_yaml_is_yaml() -> None:
    for path in tracked():
        if path.suffix in {".yaml", ".yml"}:
            list(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))
