"""Driver hosts as processes of their own, with drivers that are stand-ins."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.host_agent import HostAgent
from streamwarden.runtime.launchers.hosts import LOST, driver_hosts, host_document, start_document
from streamwarden.runtime.processes import current_process, is_alive
from streamwarden.runtime.standby import standby
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.airflow.conftest import Place

pytestmark = pytest.mark.integration


class Hosts:
    """Starts driver hosts, and ends them with the test."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [*before, sys.executable, "-m", "streamwarden.cli", "host", "--name", name]
        process = subprocess.Popen([*command, "--root", str(self.place.workspace.root)])
        self.started.append(process)
        self.until(lambda: any(one.name == name for one in driver_hosts(self.place.workspace)))
        return process

    def until(self, condition: Callable[[], Any], *, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def hosts(place: Place) -> Iterator[Hosts]:
    place.profile(launcher="host")
    made = Hosts(place)
    yield made
    made.end()


def pid_of(seen: Observation) -> int:
    assert seen.heartbeat is not None
    return seen.heartbeat.process.pid


def test_a_driver_belongs_to_its_host_and_outlives_it(place: Place, hosts: Hosts) -> None:
    deploy_job(place.workspace, place.job, by="test")
    time.sleep(0.5)
    seen = place.seen()
    assert seen.phase is Phase.STARTING and "no driver host has taken it" in seen.reason
    first = hosts.start("h1")
    seen = place.until(lambda seen: seen.phase is Phase.RUNNING)
    assert psutil.Process(pid_of(seen)).ppid() == first.pid
    assert seen.launch is not None and seen.launch.process == seen.heartbeat.process  # type: ignore[union-attr]
    hosts.until(lambda: driver_hosts(place.workspace)[0].drivers == ["lamp"])

    # Killed, and started again: the driver went on, and is found.
    first.kill()
    first.wait()
    place.batch((seen.heartbeat.batch or 0) + 3)  # type: ignore[union-attr]
    hosts.start("h1")
    assert pid_of(place.seen()) == pid_of(seen)

    # The host tells a driver's death at once. The next driver, too, is a process of the host.
    os.kill(pid_of(seen), signal.SIGKILL)
    dead = place.until(lambda seen: not seen.phase.alive, timeout=10)
    assert dead.error is not None and dead.error.code == "DRIVER_DIED"
    hosts.until(lambda: observe(place.workspace, place.job).phase is Phase.FAILED, timeout=10)
    assert restart(place.workspace, place.seen(), by="test") is not None
    again = place.until(lambda seen: seen.phase is Phase.RUNNING and pid_of(seen) != pid_of(dead))
    assert psutil.Process(pid_of(again)).ppid() == hosts.started[-1].pid
    stopped = driver_control.stop(place.workspace, place.job, by="test")
    assert stopped.phase is Phase.STOPPED
    hosts.until(lambda: start_document(place.workspace, str(stopped.incarnation)).read().ended is not None)  # type: ignore[union-attr]


def test_a_start_that_no_host_has_taken_is_withdrawn_by_a_stop(place: Place, hosts: Hosts) -> None:
    deploy_job(place.workspace, place.job, by="test")
    stopped = driver_control.stop(place.workspace, place.job, by="test", timeout=10)
    assert stopped.phase is Phase.STOPPED and stopped.incarnation is not None
    hosts.start("h1")
    time.sleep(2)
    start = start_document(place.workspace, stopped.incarnation).read()
    assert start is not None and start.host is None and place.seen().phase is Phase.STOPPED


@pytest.mark.long
@pytest.mark.ci
def test_of_two_hosts_one_starts_a_driver_and_the_less_loaded_the_next(place: Place, hosts: Hosts) -> None:
    jobs = [f"lamp{number}" for number in range(6)]
    for job in jobs:
        place.write_job(job)
    hosts.start("h1")
    hosts.start("h2")
    for job in jobs:
        deploy_job(place.workspace, job, by="test")
    hosts.until(lambda: all(observe(place.workspace, job).phase is Phase.RUNNING for job in jobs))
    hosts.until(lambda: sum(len(one.drivers) for one in driver_hosts(place.workspace)) == 6)
    assert all(one.drivers for one in driver_hosts(place.workspace))
    shown = CliRunner().invoke(app, ["hosts", "--root", str(place.workspace.root)])
    assert shown.exit_code == 0 and shown.output.count("lives") == 2, shown.output
    found = [process for process in psutil.process_iter(["cmdline"]) if str(place.workspace.root) in _line(process)]
    drivers = [process for process in found if "--incarnation" in _line(process)]
    assert len(drivers) == 6


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or [])


def looking(*agents: HostAgent, until: Callable[[], Any]) -> None:
    """Let hosts of this process look at the requests until a condition holds."""
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        for agent in agents:
            agent.look()
        time.sleep(0.1)


def test_a_full_host_leaves_a_driver_to_another(place: Place, hosts: Hosts) -> None:
    workspace = place.workspace
    place.write_job("second")
    for job in (place.job, "second"):
        deploy_job(workspace, job, by="test")
    full, free = HostAgent(workspace, name="h1", most=1), HostAgent(workspace, name="h2")
    looking(full, until=lambda: place.seen().phase is Phase.RUNNING)
    assert observe(workspace, "second").phase is Phase.STARTING
    looking(full, free, until=lambda: observe(workspace, "second").phase is Phase.RUNNING)
    looking(full, free, until=lambda: [one.drivers for one in driver_hosts(workspace)] == [["lamp"], ["second"]])


def test_a_name_is_for_one_host(place: Place, hosts: Hosts) -> None:
    HostAgent(place.workspace, name="h1").look()
    with pytest.raises(StreamwardenError, match="HOST_NAME_TAKEN"):
        HostAgent(place.workspace, name="h1").run(threading.Event())
    with pytest.raises(StreamwardenError, match="NAME_INVALID"):
        HostAgent(place.workspace, name="../../etc")


def test_a_start_that_a_killed_host_had_taken_is_done_by_the_next(place: Place, hosts: Hosts) -> None:
    deploy_job(place.workspace, place.job, by="test")
    incarnation = str(place.seen().incarnation)
    document = start_document(place.workspace, incarnation)
    # As if the host had been killed between its compare-and-swap and the start.
    document.update(lambda now: now.model_copy(update={"host": "h1", "taken": now.at}))  # type: ignore[union-attr]
    looking(HostAgent(place.workspace, name="h1"), until=lambda: place.seen().phase is Phase.RUNNING)
    assert place.seen().incarnation == incarnation


def test_a_start_that_a_killed_host_had_done_is_found(place: Place, hosts: Hosts) -> None:
    agent = HostAgent(place.workspace, name="h1")
    deploy_job(place.workspace, place.job, by="test")
    looking(agent, until=lambda: place.seen().phase is Phase.RUNNING)
    first = place.seen()
    document = start_document(place.workspace, str(first.incarnation))
    # As if the host had been killed between the start and the note of it.
    document.update(lambda now: now.model_copy(update={"process": None}))  # type: ignore[union-attr]
    looking(agent, until=lambda: document.read().process is not None)  # type: ignore[union-attr]
    assert document.read().process.pid == pid_of(first)  # type: ignore[union-attr]


def test_a_driver_is_left_to_its_host_whatever_was_launched_since(place: Place, hosts: Hosts) -> None:
    one, other = HostAgent(place.workspace, name="h1"), HostAgent(place.workspace, name="h2")
    deploy_job(place.workspace, place.job, by="test")
    looking(one, until=lambda: place.seen().phase is Phase.RUNNING)
    first = place.seen()
    # A second start of a job that runs: it is refused the lease.
    driver_control.start(place.workspace, place.job, by="test")
    documents = JobDocuments(place.workspace.storage, place.job)
    looking(other, until=lambda: documents.exit(documents.incarnations()[-1]).read() is not None)
    request = start_document(place.workspace, str(first.incarnation)).read()
    assert request is not None and request.ended is None
    # Its host signs no more.
    host_document(place.workspace, "h1").update(lambda sign: sign.model_copy(update={"at": sign.at - 2 * LOST}))  # type: ignore[union-attr]
    other.look()
    request = start_document(place.workspace, str(first.incarnation)).read()
    assert request is not None and request.ended is not None


def test_one_jobs_damage_stops_no_other_job(place: Place, hosts: Hosts) -> None:
    workspace = place.workspace
    place.write_job("whole")
    for job in (place.job, "whole"):
        deploy_job(workspace, job, by="test")
    workspace.files.write(JobDocuments(workspace.storage, place.job).lease.key, b"{")
    stop, agent = threading.Event(), HostAgent(workspace, name="h1")
    serving = threading.Thread(target=agent.run, args=(stop,))
    serving.start()
    try:
        hosts.until(lambda: observe(workspace, "whole").phase is Phase.RUNNING)
        assert serving.is_alive()
    finally:
        stop.set()
        serving.join()


def test_a_request_that_a_later_one_has_replaced_starts_nothing(place: Place, hosts: Hosts) -> None:
    deploy_job(place.workspace, place.job, by="test")
    old = str(place.seen().incarnation)
    driver_control.start(place.workspace, place.job, by="test")
    looking(HostAgent(place.workspace, name="h1"), until=lambda: place.seen().phase is Phase.RUNNING)
    assert place.seen().incarnation != old
    start = start_document(place.workspace, old).read()
    assert start is not None and start.ended is not None and start.process is None


def test_a_standby_leaves_the_start_to_a_host(place: Place, hosts: Hosts) -> None:
    agent = HostAgent(place.workspace, name="h1")
    deploy_job(place.workspace, place.job, by="test")
    looking(agent, until=lambda: place.seen().phase is Phase.RUNNING)
    desired = place.seen().desired
    assert desired is not None
    driver_control.stop(place.workspace, place.job, by="test")
    with standby(place.workspace, desired.spec, state=False) as spare:
        spare.await_ready()
        incarnation = driver_control.start(place.workspace, place.job, by="test", spare=spare)
    looking(agent, until=lambda: place.seen().phase is Phase.RUNNING)
    start = start_document(place.workspace, incarnation).read()
    assert start is not None and start.host == "h1"


ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
needs_namespace = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="a PID namespace of its own needs root and unshare"
)


@needs_namespace
def test_a_name_is_for_one_container_of_two_with_one_host_name(place: Place, hosts: Hosts) -> None:
    first = hosts.start("h1", before=ELSEWHERE)
    with pytest.raises(StreamwardenError, match="HOST_NAME_TAKEN"):
        HostAgent(place.workspace, name="h1").run(threading.Event())
    # It was replaced: its sign is still fresh.
    first.kill()
    first.wait()
    stop = threading.Event()
    threading.Timer(10, stop.set).start()
    HostAgent(place.workspace, name="h1").run(stop)
    [sign] = driver_hosts(place.workspace)
    assert sign.process == current_process()


@needs_namespace
def test_a_driver_elsewhere_is_killed_through_its_host(place: Place, hosts: Hosts) -> None:
    # As in another container: this process cannot see the driver's.
    hosts.start("h1", before=ELSEWHERE)
    place.write_job(standin_stop_gate=str(place.gate("never")))
    seen = place.deploy()
    assert seen.heartbeat is not None and is_alive(seen.heartbeat.process) is None
    ended = driver_control.stop(place.workspace, place.job, by="test", timeout=2, kill=True)
    assert ended.error is not None and ended.error.code in ("DRIVER_KILLED", "DRIVER_DIED")
    start = start_document(place.workspace, str(ended.incarnation)).read()
    assert start is not None and start.kill and start.ended is not None
