"""Install Streamwarden with the minor version of Spark before ours, for ``tests/upgrade``: into ``.tools/spark-4.1``.

The environment has this checkout's code, the locked packages but for pyspark, and the jars for that Spark, as a release
of Streamwarden for it would have. ``tests/upgrade/old_spark.toml`` pins pyspark and the jars. Packages and jars are
fetched once; the code is installed anew each time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.spark.jars import JARS_ENV, fetch, pinned

REPOSITORY = Path(__file__).resolve().parents[1]
PINS = REPOSITORY / "tests" / "upgrade" / "old_spark.toml"
TOOLS = REPOSITORY / ".tools"
UV = TOOLS / "bin" / "uv"


def main() -> int:
    """Install what is missing, and this checkout's code."""
    version = tomllib.loads(PINS.read_text(encoding="utf-8"))["pyspark"]
    home = TOOLS / f"spark-{version.rpartition('.')[0]}"
    try:
        install_packages(home, version)
        fetch(pinned(PINS), home / "jars")
        install_code(home)
    except (StreamwardenError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{error}\n{getattr(error, 'stderr', None) or ''}")
        return 1
    return 0


def install_packages(home: Path, version: str) -> None:
    """Make the environment, unless it has these packages already."""
    locked = [UV, "export", "--quiet", "--frozen", "--project", REPOSITORY, "--no-dev", "--no-emit-workspace"]
    listed = run(*locked, "--no-hashes", "--no-annotate", "--no-header")
    packages, replaced = re.subn(r"^pyspark==\S+", f"pyspark=={version}", listed, flags=re.MULTILINE)
    assert replaced == 1
    ready, wanted = home / ".ready", hashlib.sha256(packages.encode()).hexdigest()
    if ready.is_file() and ready.read_text(encoding="utf-8") == wanted:
        return
    sys.stdout.write(f"setup: an environment with Spark {version} for the tests; some minutes, once\n")
    sys.stdout.flush()
    shutil.rmtree(home, ignore_errors=True)
    run(UV, "venv", "--quiet", "--python", sys.executable, home)
    # Without dependencies: our package and delta-spark ask for other versions of pyspark.
    pip_install(home, "-r", "-", given=packages)
    ready.write_text(wanted, encoding="utf-8")


def install_code(home: Path) -> None:
    """Install this checkout's package, with the pins of the old Spark's jars in place of its own."""
    code = ("--reinstall-package", "streamwarden", REPOSITORY)
    try:
        # From uv's cache, which has what builds the package after the first time.
        pip_install(home, "--offline", *code)
    except subprocess.CalledProcessError:
        pip_install(home, *code)
    packages = next(home.glob("lib/python*/site-packages"))
    shutil.copyfile(PINS, packages / "streamwarden" / "spark" / "jars.toml")
    run(home / "bin" / "python", "-m", "streamwarden.spark.conditional_put", **{JARS_ENV: str(home / "jars")})


def pip_install(home: Path, *what: str | Path, given: str | None = None) -> None:
    """Install packages, without what they depend on."""
    run(UV, "pip", "install", "--quiet", "--no-deps", "--python", home / "bin" / "python", *what, given=given)


def run(*command: str | Path, given: str | None = None, **variables: str) -> str:
    """Run a command where neither the checkout nor its environment lends a package; return its output."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=TOOLS,
        env={**own, **variables},
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
