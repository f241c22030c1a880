"""``python -m streamwarden.driver.submission``: submit a job's driver to a cluster, by `spark-submit`.

Writes a refusal as the driver's exit: nobody waits for this process. Settings go by a file that only this user can
read, and not by the command line, which every user of the machine can read.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from streamwarden.driver import cluster_entry
from streamwarden.driver.job_session import cluster_settings
from streamwarden.driver.kubernetes_settings import DEFAULTS, in_image, kubernetes_settings
from streamwarden.driver.yarn_settings import yarn_settings
from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Exit
from streamwarden.spark.jars import find_java, spark_folder
from streamwarden.spark.java_options import SHORT_LIVED
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["main", "submit"]

_TIMEOUT_S = 600.0
"""The longest time of a submission. Without `same_image` it sends 400 MB of jars."""

_UNREACHABLE = re.compile(
    r"ConnectException|Connection refused|UnknownHostException|NoRouteToHostException|TimeoutException"
)


def submit(workspace: Workspace, job: str, spec: JobSpec, incarnation: str) -> None:
    """Run `spark-submit` until the cluster has accepted the driver; its output goes to standard error.

    Raises
    ------
    StreamwardenError
        ``SUBMISSION_REFUSED``, ``YARN_UNREACHABLE``, ``KUBERNETES_UNREACHABLE``, ``JAVA_MISSING``, ``JAR_MISSING`` or
        ``CONFIG_INVALID``.
    """
    find_java()
    home = spark_folder()
    profile = workspace.profile
    cluster = _cluster(workspace, job, incarnation, cluster_settings(workspace, spec), home)
    with tempfile.NamedTemporaryFile("w", suffix=".properties", encoding="utf-8") as file:
        file.write(_properties(cluster.settings))
        file.flush()
        command = [str(home / "bin" / "spark-submit"), "--master", profile.master, "--deploy-mode", "cluster"]
        # Settings of the machine's spark-defaults.conf count too, as for any submission from there.
        command += ["--properties-file", file.name, "--load-spark-defaults", cluster.entry]
        command += ["--profile", profile.name, "--config", cluster.config]
        command += ["--root", cluster.root, "--job", job, "--incarnation", incarnation]
        options = f"{SHORT_LIVED} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".rstrip()
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options, **cluster.environment}
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise StreamwardenError("SUBMISSION_REFUSED", f"no answer in {_TIMEOUT_S:.0f} s") from None
    sys.stderr.write(done.stdout)
    if done.returncode != 0:
        code = cluster.unreachable if _UNREACHABLE.search(done.stdout) else "SUBMISSION_REFUSED"
        raise StreamwardenError(code, f"spark-submit exits with {done.returncode}: {_reason(done.stdout)}")


@dataclass(frozen=True)
class _Cluster:
    """What a submission to one kind of cluster has of its own.

    Parameters
    ----------
    settings
        All of Spark's settings.
    entry
        The script that runs the driver, as `spark-submit` takes it.
    config, root
        The configuration folder and the root, as paths of the cluster's machines.
    environment
        Variables of the submission.
    unreachable
        The code for a cluster that does not answer.
    """

    settings: Mapping[str, str]
    entry: str
    config: str
    root: str
    unreachable: ErrorCode
    environment: Mapping[str, str] = field(default_factory=dict)


def _cluster(workspace: Workspace, job: str, incarnation: str, settings: Mapping[str, str], home: Path) -> _Cluster:
    profile = workspace.profile
    if profile.kubernetes is not None:
        pods = profile.kubernetes
        return _Cluster(
            settings={
                **DEFAULTS,
                **in_image(settings, pods),
                **kubernetes_settings(workspace.config, pods, job, incarnation),
            },
            entry=f"local://{pods.home}/streamwarden/driver/cluster_entry.py",
            config=pods.config or f"{pods.home}/config",
            # On S3, each pod has a folder of its own. Otherwise it is a volume, at the same path everywhere.
            root=profile.root if workspace.s3 is not None else str(workspace.root),
            unreachable="KUBERNETES_UNREACHABLE",
        )
    assert profile.yarn is not None
    conf = profile.yarn.hadoop_conf
    return _Cluster(
        settings={**settings, **yarn_settings(profile, incarnation, home)},
        entry=cluster_entry.__file__,
        config=profile.yarn.config or str(workspace.config),
        root=str(workspace.root),
        environment={} if conf is None else {"HADOOP_CONF_DIR": conf},
        unreachable="YARN_UNREACHABLE",
    )


def _properties(settings: Mapping[str, str]) -> str:
    """Return settings in the format of Java's properties files."""
    escapes = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})
    keys = str.maketrans({"\\": "\\\\", " ": "\\ ", ":": "\\:", "=": "\\=", "#": "\\#", "!": "\\!"})
    # A blank at a value's beginning would be skipped.
    rows = ((key.translate(keys), re.sub(r"^ ", r"\\ ", value.translate(escapes))) for key, value in settings.items())
    return "".join(f"{key}={value}\n" for key, value in rows)


def _reason(output: str) -> str:
    """Return the line of the output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    message = re.search(r"Message: (.*?\.)(?: Received status:|$)", output, re.MULTILINE)
    if message is not None:
        # An API server's own words.
        return message[1][:600]
    thrown = [line for line in lines if re.search(r"\b\w+(Exception|Error)\b", line) and not line.startswith("at ")]
    first = [line for line in thrown if line.startswith("Exception in thread")]
    return ([*first, *reversed(thrown), *reversed(lines), "no output"])[0][:600]


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit; return 1 if it failed, which is then the driver's exit."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.driver.submission")
    for name in ("profile", "config", "root", "job", "incarnation"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args(arguments)
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    documents = JobDocuments(workspace.storage, given.job)
    try:
        launch = documents.launch(given.incarnation).read()
        if launch is None or launch.spec is None:
            raise StreamwardenError("NOT_DEPLOYED", f"{given.job}: no launch document of {given.incarnation}")
        submit(workspace, given.job, launch.spec, given.incarnation)
    except Exception as raised:
        sys.stderr.write(f"{raised}\n")
        if documents.heartbeat(given.incarnation).read() is not None:
            # It was accepted all the same, and runs.
            return 0
        error = raised
        if not isinstance(error, StreamwardenError):
            error = StreamwardenError("SUBMISSION_REFUSED", f"{type(raised).__name__}: {raised}")
        ended = Exit(incarnation=given.incarnation, at=utc_now(), outcome="failed", error=ErrorInfo.of(error))
        if documents.stop(given.incarnation).read() is not None:
            # It was withdrawn during the submission, for which that is an error.
            ended = Exit(incarnation=given.incarnation, at=utc_now(), outcome="stopped")
        # There is one if it was killed meanwhile. A driver that was accepted all the same, and comes later, reads it.
        with suppress(Conflict):
            documents.exit(given.incarnation).create(ended)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
