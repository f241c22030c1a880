"""The pinned JVM jars: fetched once at set-up, checked by SHA-256, never resolved at Spark's start.

``python -m streamwarden.spark.jars`` fetches missing jars with Apache Ivy, which PySpark's wheel carries. Ivy gets its
own cache, because it fails on a half-filled ``~/.m2``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from streamwarden.errors import StreamwardenError

__all__ = ["Jar", "fetch", "find_java", "jar_dir", "pinned", "require", "spark_folder", "spark_jars"]

JARS_ENV = "STREAMWARDEN_JARS"
MIRROR_ENV = "STREAMWARDEN_MAVEN_REPO"


@dataclass(frozen=True)
class Jar:
    """One pinned jar: Maven coordinates, SHA-256, and its use: ``s3``, ``kafka``, or empty if all sessions need it."""

    group: str
    artifact: str
    version: str
    sha256: str
    use: str = ""

    @property
    def file_name(self) -> str:
        """The file's name in the jar folder."""
        return f"{self.artifact}-{self.version}.jar"


_PINS = Path(__file__).with_name("jars.toml")


@cache
def pinned(pins: Path = _PINS) -> tuple[Jar, ...]:
    """Return the jars pinned in a file."""
    table = tomllib.loads(pins.read_text(encoding="utf-8"))
    return tuple(Jar(**row) for row in table["jar"])


def jar_dir() -> Path:
    """Return the jar folder: ``STREAMWARDEN_JARS``, else ``.jars`` of the checkout."""
    given = os.environ.get(JARS_ENV)
    return Path(given).resolve() if given else Path(__file__).resolve().parents[2] / ".jars"


def require(*uses: str) -> list[Path]:
    """Return the paths of the jars for all sessions and for the given uses; all of them exist.

    Only set-up checks hashes: hashing would slow every start, and whoever can change a jar later can change this
    program too.

    Raises
    ------
    StreamwardenError
        ``JAR_MISSING``.
    """
    folder = jar_dir()
    paths = [folder / jar.file_name for jar in pinned() if jar.use in ("", *uses)]
    for path in paths:
        if not path.is_file():
            raise StreamwardenError("JAR_MISSING", str(path))
    return paths


def spark_folder() -> Path:
    """Return PySpark's folder, which is a SPARK_HOME."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def spark_jars() -> list[Path]:
    """Return the paths of Spark's own jars, in the same order wherever this version of Spark is installed."""
    return sorted((spark_folder() / "jars").glob("*.jar"))


_PROBES = 3
"""Attempts to ask Java for its version if a signal ends it. A kernel that is short of memory kills that process, which
does not mean that Java is missing. A job whose driver reports Java as missing stays down."""


def find_java() -> str:
    """Return the path of a launcher of Java 17 or newer, as far as Spark allows: 17, 21, 25.

    Raises
    ------
    StreamwardenError
        ``JAVA_MISSING``, with what was found instead.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise StreamwardenError("JAVA_MISSING", f"no java launcher ({'JAVA_HOME=' + home if home else 'on PATH'})")
    for _ in range(_PROBES):
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        if asked.returncode >= 0:
            break
    said = asked.stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) not in (17, 21, 25):
        unusable = f"unusable (exit code {asked.returncode})"
        raise StreamwardenError("JAVA_MISSING", f"{java} is {said.strip().splitlines()[0] if said else unusable}")
    return java


def fetch(jars: Sequence[Jar] | None = None, folder: Path | None = None) -> list[Path]:
    """Fetch missing jars, check all jars, and return their paths.

    Parameters
    ----------
    jars
        Default those of ``jars.toml``.
    folder
        Default :func:`jar_dir`.

    Raises
    ------
    StreamwardenError
        ``JAVA_MISSING``, ``JAR_DOWNLOAD_FAILED`` or ``JAR_HASH_MISMATCH``. A fetched jar with a wrong hash does not
        stay in the folder; an older one stays for inspection.
    """
    java = find_java()
    folder = folder or jar_dir()
    jars = jars if jars is not None else pinned()
    missing = []
    for jar in jars:
        path = folder / jar.file_name
        if path.is_file():
            _check(path, jar)
        else:
            missing.append(jar)
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        # Fetched beside the final place, so that the final rename stays within one file system.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
            _ivy(java, missing, Path(work))
            for jar in missing:
                arrived = Path(work) / "out" / jar.file_name
                _check(arrived, jar)
                arrived.replace(folder / jar.file_name)
    return [folder / jar.file_name for jar in jars]


def _check(path: Path, jar: Jar) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise StreamwardenError("JAR_HASH_MISMATCH", f"{path} has SHA-256 {found}, pinned is {jar.sha256}")


def _ivy(java: str, jars: list[Jar], work: Path) -> None:
    launcher = next((spark_folder() / "jars").glob("ivy-*.jar"))
    mirror = os.environ.get(MIRROR_ENV)
    root = f" root={quoteattr(mirror)}" if mirror else ""
    (work / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="maven"/><caches defaultCacheDir={quoteattr(str(work / "cache"))}/>'
        f'<resolvers><ibiblio name="maven" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>',
        encoding="utf-8",
    )
    rows = "".join(
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false"/>' for jar in jars
    )
    (work / "ivy.xml").write_text(
        f'<ivy-module version="2.0"><info organisation="streamwarden" module="jars"/>'
        f"<dependencies>{rows}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command = [java, "-jar", str(launcher), "-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
    command += ["-retrieve", str(work / "out" / "[artifact]-[revision].[ext]")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or any(not (work / "out" / jar.file_name).is_file() for jar in jars):
        names = ", ".join(f"{jar.group}:{jar.artifact}:{jar.version}" for jar in jars)
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise StreamwardenError("JAR_DOWNLOAD_FAILED", f"{names}\n{tail}")


def main() -> int:
    """Fetch, as ``make setup`` does, and print the result."""
    try:
        paths = fetch()
    except StreamwardenError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"jars: {len(paths)} pinned, in {jar_dir()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
