"""Remove from an environment what no container of docker-compose.yml can use. The image's build runs this once.

``trim.py SITE_PACKAGES`` prints what it removed, in MB. What it looks for must be there: after an update of a package,
a build fails instead of growing in silence. Needs ``strip`` of binutils.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

ROCKSDB = {"x86_64": "librocksdbjni-linux64.so", "aarch64": "librocksdbjni-linux-aarch64.so"}

JARS = ("spark-connect_*.jar", "spark-repl_*.jar", "scala-compiler-*.jar")


def tests(site: Path) -> None:
    """The packages' own tests: two thirds of pandas' and half of SciPy's Python."""
    found = [path for name in ("pandas", "scipy", "pyarrow") for path in (site / name).rglob("tests") if path.is_dir()]
    required(found, "tests")
    for path in found:
        shutil.rmtree(path)


def headers(site: Path) -> None:
    """What C++ programs are compiled against."""
    for name in ("include", "src"):
        shutil.rmtree(site / "pyarrow" / name)


def symbols(site: Path) -> None:
    """Symbol tables for debuggers. The dynamic ones, by which libraries are loaded, stay."""
    # Not `NAME.libs`: what was put there had its file patched, and stripping may break that.
    found = [
        path
        for pattern in ("*.so", "*.so.*")
        for path in site.rglob(pattern)
        if not path.is_symlink() and not path.parent.name.endswith(".libs")
    ]
    required(found, "libraries")
    subprocess.run(["strip", "--strip-unneeded", *map(str, found)], check=True)


def natives(site: Path) -> None:
    """RocksDB for the processors and systems that this image is not for."""
    (jar,) = (site / "pyspark" / "jars").glob("rocksdbjni-*.jar")
    keep = ROCKSDB[platform.machine()]
    made = jar.with_suffix(".new")
    with zipfile.ZipFile(jar) as whole, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as part:
        names = whole.namelist()
        required([name for name in names if name == keep], keep)
        for name in names:
            if not name.startswith("librocksdbjni-") or name == keep:
                part.writestr(whole.getinfo(name), whole.read(name))
    made.replace(jar)


def jars(site: Path) -> None:
    """The server of Spark Connect and the Scala shell."""
    for pattern in JARS:
        remove(site / "pyspark" / "jars", pattern)


def clients(site: Path) -> None:
    """Clients of what is never called: Kubernetes by asyncio, and Arrow's RPC."""
    shutil.rmtree(site / "kubernetes" / "aio")
    for pattern in ("libarrow_flight.so*", "libarrow_python_flight.so*"):
        remove(site / "pyarrow", pattern)


def remove(folder: Path, pattern: str) -> None:
    """Remove files that must be there."""
    found = list(folder.glob(pattern))
    required(found, pattern)
    for path in found:
        path.unlink()


def required(found: list[Path] | list[str], what: str) -> None:
    """Fail if nothing was found."""
    if not found:
        raise SystemExit(f"trim: no {what}: what docker/trim.py knows of this package is out of date")


STEPS: tuple[Callable[[Path], None], ...] = (tests, headers, symbols, natives, jars, clients)


def size(folder: Path) -> float:
    """Return what files take, in MB."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main(site: Path) -> int:
    """Take every step."""
    before = size(site)
    for step in STEPS:
        step(site)
        after = size(site)
        sys.stdout.write(f"trim: {step.__name__}: {before - after:.0f} MB\n")
        before = after
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
