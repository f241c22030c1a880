"""PyFlink in an environment of its own: installed once, run as processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pyspark

from streamwarden.spark.jars import Jar, fetch

HERE = Path(__file__).parent
VERSION = "2.3.0"
_UPDATE = re.compile(r"\+[IU]\[(.*)\]")


class Flink:
    """An environment with PyFlink.

    Parameters
    ----------
    folder
        Made if it does not exist; kept from run to run.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "flink" / "bin" / "python"
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / "flink")], check=True)
            packages = [f"apache-flink=={VERSION}", "setuptools<81"]
            subprocess.run([str(self.python), "-m", "pip", "install", "-q", *packages], check=True)
        pins = tomllib.loads((HERE / "jars.toml").read_text())
        own = fetch([Jar(**row) for row in pins["jar"]], folder / "jars")
        # Flink reads Parquet by Hadoop's classes, which PySpark has.
        hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
        self._jars = [str(path) for path in (*own, *hadoop)]

    def start(
        self, job: str, form: str, source: Path, work: Path, *, slots: int = 2, checkpoint: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a job."""
        command = [str(self.python), str(HERE / "flink_job.py"), job, form, str(source), str(work)]
        command += ["--slots", str(slots), "--jars", *self._jars]
        if checkpoint is not None:
            command += ["--from-checkpoint", str(checkpoint)]
        packages = next((self.python.parents[1] / "lib").glob("python*/site-packages"))
        # Thread mode finds its library by the path only.
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        # Without a cluster all workers would be threads of this one process.
        environment["_python_worker_execution_mode"] = "process"
        log = (work.parent / f"{work.name}.log").open("a")
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        )

    def run(self, job: str, form: str, source: Path, work: Path) -> dict[str, float]:
        """Run a job to the end; return seconds from its submission, of the process, and its peak of memory."""
        began = time.time()
        process = self.start(job, form, source, work)
        peak = _peak(process)
        said, _ = process.communicate()
        if process.returncode:
            log = (work.parent / f"{work.name}.log").read_text()
            raise SystemExit(f"{job} in {form}: {log[-3000:]}")
        *printed, last = said.splitlines()
        done = json.loads(last)
        if rows := [found[1].replace(" ", "") for line in printed if (found := _UPDATE.search(line)) is not None]:
            (work / "out").mkdir(exist_ok=True)
            (work / "out" / "printed.csv").write_text("\n".join(rows))
        return {"seconds": done["seconds"], "process_s": time.time() - began, "memory_gb": peak / 2**30}

    def run_interrupted(
        self, job: str, form: str, source: Path, work: Path, *, after: float, slots: int, kill: bool
    ) -> float:
        """End a run after some seconds, go on from its newest checkpoint; return the seconds of both processes."""
        began = time.time()
        process = self.start(job, form, source, work)
        time.sleep(after)
        if not kill:
            # A rescale in order: from a checkpoint that has just been completed.
            known = newest(work)
            while newest(work) == known:
                time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        second = self.start(job, form, source, work, slots=slots, checkpoint=newest(work))
        second.communicate()
        if second.returncode:
            raise SystemExit((work.parent / f"{work.name}.log").read_text()[-3000:])
        return time.time() - began


def newest(work: Path) -> Path | None:
    """Return the newest complete checkpoint of a job."""
    found = list((work / "checkpoints").glob("*/chk-*/_metadata"))
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


def forget(work: Path) -> None:
    """Remove a run's folder."""
    shutil.rmtree(work, ignore_errors=True)


def _peak(process: subprocess.Popen[str]) -> float:
    peak = 0.0
    while process.poll() is None:
        try:
            root = psutil.Process(process.pid)
            peak = max(peak, float(sum(one.memory_info().rss for one in [root, *root.children(recursive=True)])))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.5)
    return peak
