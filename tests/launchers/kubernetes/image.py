"""The image of the tests' pods: this checkout at the image's path, with what docker/Dockerfile sets."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.launchers.kubernetes.kubelet import CONTAINER, UNSHARE, Image

REPOSITORY = Path(__file__).resolve().parents[3]
JARS = REPOSITORY / ".tools" / "image-jars"
ARCHIVE = "classes-s3.jsa"


def our_image() -> Image:
    """Return what docker/Dockerfile makes of this repository, as far as a pod sees it."""
    text = re.sub(r"\\\n", " ", (REPOSITORY / "docker" / "Dockerfile").read_text())
    environment: dict[str, str] = {}
    for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE):
        for pair in shlex.split(line):
            name, _, value = pair.partition("=")
            environment[name] = value.replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    folder = re.findall(r"^WORKDIR (.*)$", text, re.MULTILINE)[-1]
    # The image has a Java of its own; here it is this machine's.
    java = shutil.which("java")
    assert java is not None
    environment["JAVA_HOME"] = os.environ.get("JAVA_HOME") or str(Path(java).resolve().parents[1])
    # The checkout is there at the image's path only: whatever names this machine's path must fail.
    image = Image({folder: REPOSITORY}, environment, json.loads(entrypoint), folder, (REPOSITORY,))
    image.mounts[f"{folder}/.jars"] = JARS
    if not _is_archived():
        _archive(image)
    return image


def _is_archived() -> bool:
    archive, ready = JARS / ARCHIVE, REPOSITORY / ".venv" / ".ready"
    return archive.is_file() and archive.stat().st_mtime > ready.stat().st_mtime


def _archive(image: Image) -> None:
    """Make the archive of Spark's classes within the image, as its build does: one fits only its own class path."""
    JARS.mkdir(parents=True, exist_ok=True)
    for jar in (REPOSITORY / ".jars").glob("*.jar"):
        (JARS / jar.name).unlink(missing_ok=True)
        # With its time, which the archive has too.
        shutil.copy2(jar, JARS / jar.name)
    with tempfile.TemporaryDirectory(prefix="streamwarden-image-") as folder:
        spec = {
            "folder": folder,
            "mounts": [(str(source), target) for target, source in image.mounts.items()],
            "read_only": [image.folder],
            "hidden": [str(path) for path in image.hidden],
            "hostname": "localhost",
            "folder_inside": image.folder,
            "command": ["python3", "-m", "streamwarden.spark.class_archive", "--required", "s3"],
            "environment": image.environment,
        }
        given = Path(folder) / "spec.json"
        given.write_text(json.dumps(spec))
        subprocess.run([*UNSHARE, sys.executable, str(CONTAINER), str(given)], check=True, timeout=900)
