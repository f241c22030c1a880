"""A real YARN on this machine: a ResourceManager and NodeManagers, each its own process, from Hadoop's jars.

They are the daemons that Hadoop's mini-cluster starts in one JVM. As processes, a test can kill one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from xml.sax.saxutils import escape

import httpx
import psutil

from streamwarden.spark.jars import find_java, pinned, spark_folder
from tests.ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".tools" / "yarn"
JARS = Path(__file__).with_name("server.toml")

NODES = 2
MEMORY = 3072
"""What each node offers to containers, in MiB."""

_RM = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NM = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_SHIPPED = ("hadoop-client-*.jar", "slf4j-*.jar", "log4j-*.jar", "jcl-over-slf4j-*.jar", "javax.servlet-*.jar")
"""What the daemons need of PySpark's jars."""

_START_S = 300.0


def is_fetched() -> bool:
    return all((FOLDER / jar.file_name).is_file() for jar in pinned(JARS))


class YarnCluster:
    """A cluster while used as a context. The folder is for configuration, containers and logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = free_ports(5)
        self._node_ports: dict[int, list[int]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"http://127.0.0.1:{self._ports[4]}"
        self.conf = folder / "conf"

    def __enter__(self) -> Self:
        self._write(self.conf, {})
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for container in self.containers():
            container.kill()

    def start_manager(self) -> None:
        self._start("rm", _RM, self.conf)

    def start_node(self, number: int) -> None:
        conf = self.folder / f"conf-node-{number}"
        work = self.folder / f"node-{number}"
        # Each node is this machine. A node that is started again keeps its address, by which it finds its containers.
        rpc, localizer, web = self._node_ports.setdefault(number, free_ports(3))
        self._write(
            conf,
            {
                "yarn.nodemanager.address": f"127.0.0.1:{rpc}",
                "yarn.nodemanager.localizer.address": f"127.0.0.1:{localizer}",
                "yarn.nodemanager.webapp.address": f"127.0.0.1:{web}",
                "yarn.nodemanager.local-dirs": work / "local",
                "yarn.nodemanager.log-dirs": work / "logs",
            },
        )
        self._start(f"node-{number}", _NM, conf)

    def kill(self, name: str, *, containers: bool = False) -> None:
        """Kill a daemon; with a node's containers, that is a machine that has gone."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        for container in self.containers(name) if containers else ():
            container.kill()

    def start(self) -> None:
        """Start the daemons that do not run."""
        if "rm" not in self._processes:
            self.start_manager()
        for number in range(NODES):
            if f"node-{number}" not in self._processes:
                self.start_node(number)
        self.until(lambda: len(self.nodes()) == NODES, "its nodes are there")

    def end_applications(self) -> None:
        """Kill all applications, and wait until their containers are gone."""
        for one in self.applications():
            if one["state"] not in ("FINISHED", "FAILED", "KILLED"):
                address = f"{self.address}/ws/v1/cluster/apps/{one['id']}/state"
                httpx.put(address, json={"state": "KILLED"}, trust_env=False)
        self.until(lambda: not self.containers(), "the end of its containers", timeout=60)

    def containers(self, node: str = "") -> list[psutil.Process]:
        """Return the processes of containers, of one node or of all."""
        below = str(self.folder / node)
        found = []
        for process in psutil.process_iter(["pid"]):
            try:
                if process.cwd().startswith(below) and "/usercache/" in process.cwd():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def node_of(self, process: psutil.Process) -> str:
        """Return the name of the node that runs a container's process."""
        return Path(process.cwd()).relative_to(self.folder).parts[0]

    def nodes(self) -> list[dict[str, Any]]:
        try:
            found = httpx.get(f"{self.address}/ws/v1/cluster/nodes", params={"states": "RUNNING"}, trust_env=False)
            return (found.json()["nodes"] or {}).get("node") or []
        except httpx.HTTPError:
            return []

    def applications(self) -> list[dict[str, Any]]:
        found = httpx.get(f"{self.address}/ws/v1/cluster/apps", trust_env=False).json()
        return (found["apps"] or {}).get("app") or []

    def until(self, condition: Any, what: str, timeout: float = _START_S) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} has ended:\n{self.log(name)}"
            assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}\n{self.log('rm')}"
            time.sleep(0.25)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-6000:]

    def _start(self, name: str, main: str, conf: Path) -> None:
        jars = [FOLDER / jar.file_name for jar in pinned(JARS)]
        shipped = [one for pattern in _SHIPPED for one in sorted((spark_folder() / "jars").glob(pattern))]
        path = os.pathsep.join(map(str, [conf, *jars, *shipped]))
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options.append(f"-Dlog4j2.configurationFile={self._log4j()}")
        for opened in ("java.lang", "java.util", "java.net", "java.nio"):
            options += ["--add-opens", f"java.base/{opened}=ALL-UNNAMED"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [find_java(), *options, "-cp", path, main],
                cwd=self.folder,
                env={**os.environ, "HADOOP_CONF_DIR": str(conf), "JAVA_HOME": java_home()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log4j(self) -> Path:
        path = self.folder / "log4j2.properties"
        if not path.exists():
            path.write_text(
                "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
                "appender.out.name = out\nappender.out.layout.type = PatternLayout\n"
                "appender.out.layout.pattern = %d %p %c{1}: %m%n%ex\n"
            )
        return path

    def _write(self, conf: Path, own: Mapping[str, object]) -> None:
        rpc, scheduler, tracker, admin, web = self._ports
        yarn = {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.address": f"127.0.0.1:{rpc}",
            "yarn.resourcemanager.scheduler.address": f"127.0.0.1:{scheduler}",
            "yarn.resourcemanager.resource-tracker.address": f"127.0.0.1:{tracker}",
            "yarn.resourcemanager.admin.address": f"127.0.0.1:{admin}",
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{web}",
            "yarn.resourcemanager.scheduler.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
            ),
            "yarn.nodemanager.resource.memory-mb": MEMORY,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.scheduler.maximum-allocation-mb": MEMORY,
            # As in production: a ResourceManager that is started again goes on with what ran. NodeManagers do not here:
            # their recovery needs LevelDB, which the jar has not.
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
            ),
            "yarn.resourcemanager.fs.state-store.uri": f"file://{self.folder}/rm-state",
            # By default, ten minutes.
            "yarn.nm.liveness-monitor.expiry-interval-ms": 15000,
            "yarn.resourcemanager.nm.liveness-monitor.interval-ms": 1000,
            # Spark's own jars, and no Hadoop of the nodes.
            "yarn.application.classpath": "",
            **own,
        }
        root = "yarn.scheduler.capacity"
        scheduler_settings = {
            f"{root}.root.queues": "default",
            f"{root}.root.default.capacity": 100,
            # The share of drivers' containers; by default a tenth.
            f"{root}.maximum-am-resource-percent": 1.0,
            f"{root}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator",
        }
        conf.mkdir(parents=True, exist_ok=True)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.folder / "tmp"}
        for name, settings in (("core-site", core), ("yarn-site", yarn), ("capacity-scheduler", scheduler_settings)):
            rows = "".join(
                f"<property><name>{key}</name><value>{escape(str(value))}</value></property>\n"
                for key, value in settings.items()
            )
            (conf / f"{name}.xml").write_text(f"<configuration>\n{rows}</configuration>\n")


def java_home() -> str:
    return str(Path(find_java()).resolve().parents[1])


if __name__ == "__main__":
    # By hand: `python -m tests.yarn.cluster FOLDER`, until its input ends.
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with YarnCluster(folder) as cluster:
        sys.stdout.write(f"{cluster.address}, HADOOP_CONF_DIR={cluster.conf}\n")
        sys.stdout.flush()
        sys.stdin.read()
