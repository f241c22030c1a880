"""``make compose-engine``: podman, Docker's Compose and base images, for a Debian machine without Docker or registry.

Needs root, because it installs Debian's packages and runs containers. What it makes is below ``.tools/compose``, and
done once: Compose is built from its Go module, and each base image of docker-compose.yml is made from Debian's
packages under the official image's name. Mirrors and certificates are those of the machine's own apt and pip
settings. Such images are for tests only.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from streamwarden.spark.jars import fetch, pinned
from tests.compose.engine import FOLDER, REPOSITORY, Podman

IMAGES = Path(__file__).parent / "images"
COMPOSE = "v2.40.3"
PACKAGES = "podman netavark aardvark-dns runc catatonit buildah debootstrap iptables"
BASES = {
    "python": "docker.io/library/python:3.11.14-slim-bookworm",
    "postgres": "docker.io/library/postgres:16.10-bookworm",
    "versitygw": "docker.io/versity/versitygw:v1.8.0",
    "prometheus": "docker.io/prom/prometheus:v3.13.5",
}


def main() -> int:
    """Set up what is missing."""
    if os.geteuid() != 0:
        sys.stderr.write("compose-engine: needs root: it installs packages and runs podman\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    asked = subprocess.run(["dpkg", "--status", *PACKAGES.split()], capture_output=True, check=False)
    if asked.returncode != 0:
        say("Debian's packages: " + PACKAGES)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "--quiet", environment=environment)
        run(
            "apt-get",
            "install",
            "--yes",
            "--quiet",
            "--no-install-recommends",
            *PACKAGES.split(),
            environment=environment,
        )
    if not (FOLDER / "docker-compose").is_file():
        say(f"Compose {COMPOSE}, from its source; some minutes, once")
        build_compose()
    podman = Podman()
    missing = [name for name, tag in BASES.items() if not exists(podman, tag)]
    if missing:
        if not exists(podman, "localhost/debian:bookworm"):
            say("Debian, for the base images")
            import_debian(podman)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            make_context(Path(folder))
            for name in missing:
                say(BASES[name])
                file = str(IMAGES / f"{name}.Dockerfile")
                build = [*podman.command, "build", "--quiet", "--tag", BASES[name], "--file", file, folder]
                run(*build, environment=dict(podman.environment))
    say("ready")
    return 0


def say(what: str) -> None:
    """Print a line."""
    sys.stdout.write(f"compose-engine: {what}\n")
    sys.stdout.flush()


def run(*command: str, environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    """Run a command; its end with another status than 0 is an exception."""
    subprocess.run(command, env=environment, cwd=folder, check=True)


def exists(podman: Podman, tag: str) -> bool:
    """Tell whether an image is there."""
    command = [*podman.command, "image", "exists", tag]
    return subprocess.run(command, env=podman.environment, check=False).returncode == 0


def build_compose() -> None:
    """Build Compose, which has no Debian package of version 2."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="go-") as folder:
        work = Path(folder)
        environment = {
            **os.environ,
            "GOPATH": str(work / "path"),
            "GOCACHE": str(work / "cache"),
            "GOFLAGS": "-modcacherw",
            "CGO_ENABLED": "0",
        }
        run("go", "mod", "download", f"github.com/docker/compose/v2@{COMPOSE}", environment=environment, folder=work)
        # `go install` refuses a module with replacements, as this one has.
        source = work / "path" / "pkg" / "mod" / "github.com" / "docker" / "compose" / f"v2@{COMPOSE}"
        flags = ["-trimpath", f"-ldflags=-s -w -X github.com/docker/compose/v2/internal.Version={COMPOSE}"]
        run("go", "build", *flags, "-o", str(work / "docker-compose"), "./cmd", environment=environment, folder=source)
        (work / "docker-compose").replace(FOLDER / "docker-compose")


def import_debian(podman: Podman) -> None:
    """Make the smallest Debian an image."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        run("debootstrap", "--variant=minbase", "bookworm", folder)
        # The official image has no packages and no caches of apt in it either.
        left_out = ["--exclude=./var/cache/apt/*.bin", "--exclude=./var/cache/apt/archives/*.deb"]
        packed = subprocess.Popen(["tar", "--directory", folder, "--create", *left_out, "."], stdout=subprocess.PIPE)
        command = [*podman.command, "import", "--quiet", "-", "localhost/debian:bookworm"]
        subprocess.run(command, env=podman.environment, stdin=packed.stdout, check=True)
        packed.wait()


def make_context(folder: Path) -> None:
    """Lay the files out that the base images copy."""
    shutil.copytree("/etc/apt/sources.list.d", folder / "sources")
    if Path("/etc/apt/sources.list").is_file():
        shutil.copy("/etc/apt/sources.list", folder / "sources" / "machine.list")
    (folder / "apt").mkdir()
    for setting in Path("/etc/apt/apt.conf.d").iterdir():
        # Only what says how to fetch: others start programs of the machine.
        if "Acquire::" in (text := setting.read_text(encoding="utf-8")) and "DPkg" not in text:
            shutil.copy(setting, folder / "apt")
    shutil.copytree("/usr/local/share/ca-certificates", folder / "certificates")
    pip = Path("/etc/pip.conf")
    (folder / "pip.conf").write_text(pip.read_text(encoding="utf-8") if pip.is_file() else "", encoding="utf-8")
    run(sys.executable, str(REPOSITORY / "scripts" / "build_s3_server.py"))
    shutil.copy(REPOSITORY / ".tools" / "bin" / "versitygw", folder)
    shutil.copy(IMAGES / "postgres_entry.sh", folder)
    (jar,) = fetch(pinned(IMAGES / "postgres.toml"), FOLDER)
    with (
        zipfile.ZipFile(jar) as packed,
        tarfile.open(fileobj=io.BytesIO(packed.read("postgres-linux-x86_64.txz")), mode="r:xz") as programs,
    ):
        programs.extractall(folder / "postgres", filter="data")


if __name__ == "__main__":
    sys.exit(main())
