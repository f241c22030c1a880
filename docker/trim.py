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

JARS = (
    *("spark-connect_*.jar", "spark-repl_*.jar", "scala-compiler-*.jar"),
    # Hive's metastore. Not hive-storage-api, which ORC needs.
    *("spark-hive*.jar", "hive-[!s]*.jar", "hive-se*.jar", "hive-sh*.jar", "derby*.jar", "datanucleus-*.jar"),
)

AWS = {"s3", "sts", "sso", "sso-oidc", "signin", "secretsmanager", "ssm", "kms"}
"""The bucket, ways to its credentials, and where Airflow may keep secrets."""


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
    """The server of Spark Connect, the Scala shell, Hive's metastore, and TLS of Netty for other systems."""
    folder = site / "pyspark" / "jars"
    for pattern in JARS:
        remove(folder, pattern)
    others = [path for path in folder.glob("netty-tcnative-*-*-*.jar") if "-linux-" not in path.name]
    required(others, "netty-tcnative")
    for path in others:
        path.unlink()


def languages(site: Path) -> None:
    """What Babel knows of other languages than English, which alone Airflow's login page has."""
    others = [
        path for path in (site / "babel" / "locale-data").glob("*.dat") if path.stem.split("_")[0] not in ("root", "en")
    ]
    required(others, "languages")
    for path in others:
        path.unlink()


def clients(site: Path) -> None:
    """Clients of what is never called: Kubernetes by asyncio, Arrow's RPC, and most of Amazon's services."""
    shutil.rmtree(site / "kubernetes" / "aio")
    services = [path for path in (site / "botocore" / "data").iterdir() if path.is_dir() and path.name not in AWS]
    required(services, "services")
    for path in services:
        shutil.rmtree(path)
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


STEPS: tuple[Callable[[Path], None], ...] = (tests, headers, symbols, natives, jars, languages, clients)


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
