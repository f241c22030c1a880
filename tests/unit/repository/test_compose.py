"""docker-compose.yml: valid, complete, pinned, closed to the outside, without default passwords.

No container engine is needed. ``compose-spec.json`` beside this file is the compose specification's JSON schema
(Apache-2.0), as check-jsonschema 0.39.0 carries it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

import streamwarden
from streamwarden.store.config import load_profile

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "docker-compose.yml"
TEXT = COMPOSE.read_text(encoding="utf-8")
PROJECT: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = PROJECT["services"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
IMAGE_HOME = "/opt/streamwarden/"

LONG_RUNNING = sorted(name for name, service in SERVICES.items() if service.get("restart") == "unless-stopped")
JOBS = sorted(set(SERVICES) - set(LONG_RUNNING))
OURS = sorted(name for name, service in SERVICES.items() if service["image"].startswith("streamwarden:"))
MONITORING = sorted(name for name, service in SERVICES.items() if service.get("profiles") == ["monitoring"])


def load_make_env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_env", ROOT / "scripts" / "make_env.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_env = load_make_env()


def command(service: str) -> list[str]:
    given = SERVICES[service].get("command", [])
    assert isinstance(given, list), f"{service}: a list needs no shell's quoting"
    return given


def arguments_naming_files() -> dict[str, str]:
    """Return the files of the image that commands and health checks name, with a service that does."""
    return {
        word: name
        for name, service in SERVICES.items()
        for word in [*service.get("command", []), *service.get("healthcheck", {}).get("test", [])]
        if word.startswith(IMAGE_HOME)
    }


def test_valid_by_the_compose_specification() -> None:
    schema = json.loads(Path(__file__).with_name("compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(PROJECT)


def test_the_schema_refuses_what_is_wrong() -> None:
    schema = json.loads(Path(__file__).with_name("compose-spec.json").read_text(encoding="utf-8"))
    wrong = {"services": {"a": {"image": "b:1", "helthcheck": {}}}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


def compose_config(env_file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("docker-compose")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("docker-compose is not installed; CI must not pass without it")
        pytest.skip("docker-compose is not installed")
    # Only the file's variables: what the machine happens to have set must not stand in for a missing one.
    environment = {"PATH": os.environ["PATH"], "HOME": str(env_file.parent)}
    words = [
        program,
        "--file",
        str(COMPOSE),
        "--profile",
        "monitoring",
        "--env-file",
        str(env_file),
        "config",
        *arguments,
    ]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_docker_compose_loads_it(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    make_env.write(env)
    done = compose_config(env)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == set(SERVICES)
    written = dict(line.split("=", 1) for line in env.read_text().splitlines() if not line.startswith("#"))
    assert services["s3"]["environment"]["ROOT_SECRET_KEY"] == written["S3_SECRET_KEY"]


@pytest.mark.parametrize("missing", sorted(make_env.SECRETS))
def test_without_a_secret_it_says_what_to_do(missing: str, tmp_path: Path) -> None:
    env = tmp_path / ".env"
    make_env.write(env)
    env.write_text("\n".join(line for line in env.read_text().splitlines() if not line.startswith(f"{missing}=")))
    done = compose_config(env, "--quiet")
    assert done.returncode != 0
    assert "run scripts/make_env.py first" in done.stderr


def test_services_volumes_and_networks_that_are_named_exist() -> None:
    volumes, networks = set(), set()
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, f"{name} depends on {other}"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for the health of {other}, which has none"
            elif how["condition"] == "service_completed_successfully":
                assert other in JOBS, f"{name} waits for the end of {other}, which has none"
        networks |= set(service["networks"])
        for mount in service.get("volumes", []):
            source, target = mount.split(":")[:2]
            assert target.startswith("/")
            if source.startswith((".", "/")):
                assert (ROOT / source).exists(), f"{name} mounts {source}"
            else:
                volumes.add(source)
    assert volumes == set(PROJECT["volumes"])
    assert networks == set(PROJECT["networks"])


def test_no_service_waits_for_itself() -> None:
    waits = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    started: set[str] = set()
    while ready := {name for name, others in waits.items() if name not in started and others <= started}:
        started |= ready
    assert started == set(SERVICES)


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_image_is_pinned(service: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+(\.\d+)+(-\w+)*", SERVICES[service]["image"])


def test_base_image_and_uv_are_pinned() -> None:
    froms = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert froms and all(re.fullmatch(r"python:3\.11\.\d+-slim-\w+", image) for image in froms)
    assert re.search(r"uv==\d+\.\d+\.\d+", DOCKERFILE)


def test_our_image_has_the_projects_version() -> None:
    assert OURS
    assert {SERVICES[name]["image"] for name in OURS} == {f"streamwarden:{streamwarden.__version__}"}
    # Whichever is started first builds it; without, compose would try to pull it.
    assert all("build" in SERVICES[name] for name in OURS)


def test_ports_are_on_loopback_and_distinct() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(isinstance(port, str) and port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":", 1)[1].rsplit(":", 1)[0] for port in published}) == len(published)


def test_secrets_have_no_default() -> None:
    required = set(re.findall(r"\$\{(\w+):\?run scripts/make_env\.py first\}", TEXT))
    assert required == set(make_env.SECRETS)
    optional = set(re.findall(r"\$\{(\w+)(?::-[^}]*)?\}", TEXT))
    assert not optional & required
    secret = re.compile(r"PASSWORD|SECRET|(?<!PUBLIC_)KEY|TOKEN|CONN$")
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            # A path to a file of passwords is none.
            if secret.search(key) and not key.endswith("_FILE"):
                assert ":?run scripts/make_env.py first}" in str(value), f"{name}: {key}"


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_long_running_service_has_a_health_check(service: str) -> None:
    check = SERVICES[service]["healthcheck"]
    form, *parts = check["test"]
    # Podman splits the parts of CMD at spaces.
    assert (form == "CMD" and not any(" " in part for part in parts)) or (form == "CMD-SHELL" and len(parts) == 1)
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert "stop_grace_period" in SERVICES[service]


def test_jobs_are_the_ones_we_mean() -> None:
    assert JOBS == ["airflow-init", "replay", "s3-init", "volumes-init"]


@pytest.mark.parametrize("service", OURS)
def test_our_containers_have_an_init_and_no_privileges(service: str) -> None:
    found = SERVICES[service]
    assert found["init"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in found["security_opt"]
    if service != "volumes-init":
        assert found["user"] == "10001:10001"
        assert not found.get("cap_add")
    assert re.search(r"--uid 10001\b", DOCKERFILE)
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1] == "streamwarden"


def test_monitoring_starts_only_if_asked_for() -> None:
    assert MONITORING == ["grafana", "metrics-targets", "prometheus"]
    for name, service in SERVICES.items():
        if name not in MONITORING:
            assert "profiles" not in service
            assert not set(service.get("depends_on", {})) & set(MONITORING), f"{name} would not start without it"


def test_only_the_one_that_gives_volumes_away_runs_as_root() -> None:
    users = {name: int(service["user"].partition(":")[0]) for name, service in SERVICES.items()}
    assert [name for name, user in users.items() if user == 0] == ["volumes-init"]


@pytest.mark.parametrize("service", ["postgres", *MONITORING])
def test_others_containers_have_no_privileges(service: str) -> None:
    found = SERVICES[service]
    user, _, group = found["user"].partition(":")
    assert int(user) > 0 and group.isdigit()
    assert found["cap_drop"] == ["ALL"]
    assert service == "postgres" or found["init"] is True
    assert "no-new-privileges:true" in found["security_opt"] and not found.get("cap_add")
    # Each has a volume that only root could write, if `volumes-init` did not give it away.
    (script,) = [word for word in command("volumes-init") if "chown" in word]
    mounted = dict(mount.split(":")[:2] for mount in SERVICES["volumes-init"]["volumes"])
    own = [mount.split(":")[0] for mount in found["volumes"] if mount[0] != "." and not mount.endswith(":ro")]
    assert own
    for volume in own:
        assert f"chown {found['user']} {mounted[volume]}\n" in script


def test_grafana_lets_nobody_in_without_a_password() -> None:
    given = SERVICES["grafana"]["environment"]
    assert given["GF_AUTH_ANONYMOUS_ENABLED"] == given["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert {"GF_SECURITY_ADMIN_PASSWORD", "GF_SECURITY_SECRET_KEY"} <= set(given)


def test_prometheus_can_be_read_and_not_ordered_about() -> None:
    # It has no login: these flags would let everybody who reaches its port stop it, or delete what it has.
    for flag in ("--web.enable-lifecycle", "--web.enable-admin-api"):
        assert not any(word.startswith(flag) for word in command("prometheus"))


def test_endpoints_of_drivers_are_reached_by_containers_only() -> None:
    published = {port.rsplit(":", 1)[1] for service in SERVICES.values() for port in service.get("ports", [])}
    for name in ("cluster", "compose_s3"):
        spec = load_profile(name, config=ROOT / "config").metrics.prometheus
        assert spec is not None and spec.host == "0.0.0.0"
        assert not {str(port) for port in range(spec.port, spec.port + spec.ports)} & published


def test_the_root_is_shared_at_one_path() -> None:
    root = load_profile("cluster", config=ROOT / "config").root
    users = {name for name, service in SERVICES.items() if f"streamwarden:{root}" in service.get("volumes", [])}
    assert {"airflow-scheduler", "airflow-triggerer", "spark-worker", "replay"} <= users


def test_drivers_can_be_reached_by_their_host_name() -> None:
    profile = load_profile("cluster", config=ROOT / "config")
    assert profile.spark["spark.driver.host"] == "${env:HOSTNAME}"
    # Docker's DNS knows services, not host names: they must be the same.
    for name in LONG_RUNNING:
        if name in OURS:
            assert SERVICES[name]["hostname"] == name
    assert f"spark://{SERVICES['spark-master']['hostname']}:7077" == profile.master == command("spark-worker")[-1]


def test_commands_name_files_of_the_image() -> None:
    named = arguments_naming_files()
    assert named
    for path, service in named.items():
        file = ROOT / path.removeprefix(IMAGE_HOME)
        assert file.is_file(), f"{service}: {path}"
        if command(service)[:1] == [path]:
            assert file.stat().st_mode & stat.S_IXUSR, f"{path} is started, and is not executable"


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_copied_files_exist_and_are_not_ignored() -> None:
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in allowed
    sources = copied()
    assert {"uv.lock", "streamwarden", "config", "docker"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), f"docker/Dockerfile copies {source}"
        assert f"!{source.split('/')[0]}" in allowed, f".dockerignore hides {source}"


def test_every_folder_that_airflow_is_told_of_is_copied() -> None:
    told = re.findall(rf"{IMAGE_HOME}(\w+)", TEXT)
    assert set(told) <= set(copied())


def test_streamwarden_commands_are_ones() -> None:
    from typer.testing import CliRunner

    from streamwarden.cli.app import app

    found = [command(name) for name in SERVICES if command(name)[:1] == ["streamwarden"]]
    assert found
    for words in found:
        # --help ends it, after all options were parsed.
        assert CliRunner().invoke(app, [*words[1:], "--help"]).exit_code == 0


def test_env_file_is_private_fresh_and_never_overwritten(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    assert make_env.main([str(first)]) == 0
    assert make_env.main([str(second)]) == 0
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    values = [
        dict(line.split("=", 1) for line in path.read_text().splitlines() if not line.startswith("#"))
        for path in (first, second)
    ]
    assert set(values[0]) == set(make_env.SECRETS)
    assert not set(values[0].values()) & set(values[1].values())
    before = first.read_bytes()
    assert make_env.main([str(first)]) == 1
    assert first.read_bytes() == before


def test_an_env_file_of_an_earlier_version_gets_what_it_lacks(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    make_env.write(env)
    lines = env.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "GRAFANA" not in line]
    # As edited by hand: a port, and no newline at the end.
    env.write_text("".join(kept) + "AIRFLOW_PORT=8090")
    assert make_env.main([str(env)]) == 0
    assert env.read_text().startswith("".join(kept) + "AIRFLOW_PORT=8090\n")
    names = [line.split("=")[0] for line in env.read_text().splitlines() if not line.startswith("#")]
    assert sorted(names) == sorted([*make_env.SECRETS, "AIRFLOW_PORT"])
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert make_env.main([str(env)]) == 1


def test_env_file_is_ignored_by_git() -> None:
    done = subprocess.run(["git", "check-ignore", "--quiet", ".env"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_fernet_key_is_one(tmp_path: Path) -> None:
    from cryptography.fernet import Fernet

    value = re.search(r"^AIRFLOW_FERNET_KEY=(.+)$", make_env.render(), re.MULTILINE)
    assert value is not None
    box = Fernet(value[1].encode())
    assert box.decrypt(box.encrypt(b"x")) == b"x"


def test_health_check_reads_the_answer(tmp_path: Path) -> None:
    (tmp_path / "health").write_text('{"scheduler": {"status": "healthy"}, "triggerer": {"status": null}}')
    url = (tmp_path / "health").as_uri()
    script = str(ROOT / "docker" / "healthcheck.py")

    def check(*words: str) -> int:
        return subprocess.run([sys.executable, "-S", script, *words], capture_output=True, check=False).returncode

    assert check(url) == 0
    assert check(url, "scheduler.status=healthy") == 0
    assert check(url, "triggerer.status=healthy") == 1
    assert check(url, "dag_processor.status=healthy") == 1
    assert check(f"{url}-gone") == 1
