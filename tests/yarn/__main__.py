"""``python -m tests.yarn``: a real YARN on this machine, to try the profile `yarn` on, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from pathlib import Path

import yaml

from tests.yarn.cluster import YarnCluster, is_fetched

# printed: a person waits for it
# ruff: noqa: T201


def main() -> int:
    """Start the cluster, print a profile for it, and end it at Ctrl-C."""
    if not is_fetched():
        print("YARN is not fetched: run `make yarn-cluster`", file=sys.stderr)
        return 1
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with (
        tempfile.TemporaryDirectory(prefix="yarn-", ignore_cleanup_errors=True) as folder,
        YarnCluster(Path(folder)) as one,
    ):
        profile = {
            "name": "yarn",
            "root": "var/yarn",
            "master": "yarn",
            "launcher": "yarn",
            "same_image": True,
            "yarn": {"resource_managers": [one.address], "hadoop_conf": str(one.conf)},
            "spark": {"spark.yarn.stagingDir": f"file://{folder}/staging"},
            "jobs": {"resources": {"cores": 1, "memory": "600m"}},
        }
        print(
            f"# {one.address}, until Ctrl-C. config/profiles/yarn.yaml:\n{yaml.safe_dump(profile, sort_keys=False)}",
            flush=True,
        )
        ended.wait()
        one.end_applications()
    return 0


if __name__ == "__main__":
    sys.exit(main())
