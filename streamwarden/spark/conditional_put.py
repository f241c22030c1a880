"""Our own classes for Spark, compiled once at set-up: they make one of two writers of a log entry fail.

They cover Delta's log and a checkpoint's logs: on S3 by conditional PUT, on disk by a hard link. The sources
``java/*.java`` describe them; docs/decisions/0015 gives the reason. The compiler is Janino, which Spark carries for its
generated code, because a Java runtime has no compiler.

``python -m streamwarden.spark.conditional_put`` compiles them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.spark.jars import find_java, jar_dir, require, spark_folder, spark_jars

__all__ = [
    "CHECKPOINT_FILE_MANAGER",
    "DISK_CHECKPOINT_FILE_MANAGER",
    "DISK_LOG_STORE",
    "LOG_STORE",
    "compile_jar",
    "jar",
]

LOG_STORE = "streamwarden.ConditionalPutLogStore"
CHECKPOINT_FILE_MANAGER = "streamwarden.ConditionalPutCheckpointFileManager"
DISK_LOG_STORE = "streamwarden.HardLinkLogStore"
DISK_CHECKPOINT_FILE_MANAGER = "streamwarden.HardLinkCheckpointFileManager"

_SOURCES = tuple(sorted((Path(__file__).parent / "java").glob("*.java")))
_NAME = "streamwarden-conditional-put"
_JANINO = "org.codehaus.commons.compiler.samples.CompilerDemo"
"""Janino's command line, which it names as a sample."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time in a zip file: a fixed time makes equal jars from equal sources."""


def _path() -> Path:
    """Return the path of the jar for these sources: other versions have other names."""
    content = b"".join(source.read_bytes() for source in _SOURCES)
    return jar_dir() / f"{_NAME}-{hashlib.sha256(content).hexdigest()[:12]}.jar"


def jar() -> Path:
    """Return the path of the compiled jar.

    Raises
    ------
    StreamwardenError
        ``JAR_MISSING``.
    """
    path = _path()
    if not path.is_file():
        raise StreamwardenError("JAR_MISSING", str(path))
    return path


def compile_jar() -> Path:
    """Compile the sources if necessary, and return the jar's path. Removes jars of other versions.

    Raises
    ------
    StreamwardenError
        ``JAVA_MISSING``; ``JAR_MISSING`` if a jar needed for compilation is missing.
    subprocess.CalledProcessError
        With the compiler's output.
    """
    path = _path()
    if path.is_file():
        return path
    class_path = os.pathsep.join(str(one) for one in (*require("s3"), *spark_jars()))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compile-") as work:
        classes = Path(work) / "classes"
        classes.mkdir()
        own = str(spark_folder() / "jars" / "*")
        compiler = [find_java(), "-cp", own, _JANINO, "-d", str(classes), "-classpath", class_path]
        command = [*compiler, *(str(source) for source in _SOURCES)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        made = Path(work) / path.name
        with zipfile.ZipFile(made, "w") as archive:
            for compiled in sorted(classes.rglob("*.class")):
                entry = zipfile.ZipInfo(compiled.relative_to(classes).as_posix(), date_time=_EPOCH)
                archive.writestr(entry, compiled.read_bytes())
        for other in path.parent.glob(f"{_NAME}-*.jar"):
            other.unlink()
        made.replace(path)
    return path


def main() -> int:
    """Compile, as ``make setup`` does, and print the result."""
    try:
        path = compile_jar()
    except (StreamwardenError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n{getattr(error, 'stderr', '') or ''}")
        return 1
    sys.stdout.write(f"jars: {path.name}, compiled\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
