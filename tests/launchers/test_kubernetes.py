"""What happens to pods, on a real API server with scheduler, controllers and rights: deleted, evicted, node gone."""

from __future__ import annotations

import errno
import os

import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from nyc_taxi.demo.verify import read_table

from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.launchers.interface import StartState
from streamwarden.runtime.launchers.kubernetes import pod_name
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action
from streamwarden.supervision.observe import Phase
from tests.conftest import TripMaker
from tests.integration.conftest import BY
from tests.launchers.kubernetes.cluster import NAMESPACE
from tests.launchers.kubernetes.place import KubernetesPlace
from tests.launchers.place import JOB, until
from tests.spark.job_runs import as_trips

pytestmark = [
    *(pytest.mark.integration, pytest.mark.launchers, pytest.mark.long, pytest.mark.timeout(900)),
    pytest.mark.parametrize("kind", ["kubernetes-s3"]),
]

ZONES = "zone_windows"


def test_a_real_job_survives_what_happens_to_pods(place: KubernetesPlace, make_trips: TripMaker) -> None:
    place.job(
        ZONES,
        source={"kind": "delta", "table": "trips", "max_files_per_batch": 1},
        restarts={"max": 9, "backoff": "100ms", "backoff_max": "1s"},
    )
    trips, parts = as_trips(make_trips(2_000, hours=24)), 5
    uri, options = place.workspace.delta_rs("trips")

    def land(part: int) -> None:
        size = len(trips) // parts
        write_deltalake(uri, trips.slice(part * size, size), mode="append", storage_options=options)

    def committed(batch: int) -> str:
        seen = place.wait(
            ZONES,
            lambda now: now.phase is Phase.RUNNING and bool(now.heartbeat and (now.heartbeat.batch or 0) >= batch),
            f"batch {batch}",
            timeout=240,
        )
        assert seen.incarnation is not None
        return seen.incarnation

    def down(expected: str) -> None:
        seen = place.wait(ZONES, lambda now: not now.phase.alive, "the end to be noticed", timeout=60)
        assert expected in f"{seen.reason} {seen.error and seen.error.what}", seen
        place.supervise(ZONES)

    land(0)
    deploy_job(place.workspace, ZONES, by=BY)
    first = committed(0)

    # Deleted by somebody, with the time that any pod gets.
    land(1)
    place.cluster.api.delete(place.cluster.path("pods", pod_name(ZONES, first)))
    down("")
    second = committed(1)

    # Evicted by its node: the pod stays, and says why.
    land(2)
    place.cluster.nodes["node-1"].evict(pod_name(ZONES, second), "The node was low on resource: memory.")
    down("low on resource: memory")
    third = committed(2)

    # The node is gone, and the API server takes the pod for running. Another node has room.
    land(3)
    place.cluster.add_node("node-2")
    place.cluster.remove_node("node-1")
    assert launcher_of(place.workspace).find(ZONES, third).state is StartState.STARTED
    down("no heartbeat")
    fourth = committed(3)
    land(4)
    expected = expected_zone_windows(read_table(place.workspace, "trips"))

    def equal() -> bool:
        return compare_zone_windows(expected, read_table(place.workspace, ZONES)).equal

    # A number of batches says nothing of the input: a batch may be without rows, for the watermark alone.
    until(equal, "all trips in the table")
    assert len({first, second, third, fourth}) == 4
    assert driver_control.stop(place.workspace, ZONES, by=BY).phase is Phase.STOPPED
    assert equal()

    # Each of those accounts had what it needs, and nothing else was tried.
    assert place.cluster.refusals() == []
    # Executors end with their driver: their owner is its pod. Those of a lost node stay until the node is forgotten.
    place.cluster.api.delete("/api/v1/nodes/node-1")
    until(lambda: executors(place) == [], "the end of all executors")


def executors(place: KubernetesPlace) -> list[str]:
    found = place.cluster.api.items(place.cluster.path("pods"), labelSelector="spark-role=executor")
    return [pod["metadata"]["name"] for pod in found if pod["status"]["phase"] in ("Pending", "Running")]


def test_accounts_may_do_no_more_than_they_need(place: KubernetesPlace) -> None:
    def may(account: str, verb: str, resource: str, subresource: str = "") -> bool:
        review = {
            "spec": {
                "user": f"system:serviceaccount:{NAMESPACE}:{account}",
                "resourceAttributes": {
                    "namespace": NAMESPACE,
                    "verb": verb,
                    "resource": resource,
                    "subresource": subresource,
                },
            }
        }
        answer = place.cluster.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    for account in ("streamwarden-submitter", "streamwarden-driver", "streamwarden-executor"):
        for verb in ("get", "list", "watch", "create"):
            assert not may(account, verb, "secrets"), f"{account} {verb} secrets"
        assert not may(account, "create", "pods", "exec")
    assert not any(may("streamwarden-executor", verb, "pods") for verb in ("get", "list", "create", "delete"))
    assert may("streamwarden-submitter", "create", "pods") and may("streamwarden-driver", "create", "pods")


def test_no_secret_leaves_its_secret(place: KubernetesPlace) -> None:
    driver = place.deploy()
    until(lambda: executors(place) != [], "an executor")
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    api, path = place.cluster.api, place.cluster.path
    for kind in ("pods", "configmaps", "services", "events"):
        assert secret not in str(api.get(path(kind))), kind
    pod = place.kubernetes_pod(driver)
    assert pod is not None
    variables = pod["spec"]["containers"][0]["env"]
    sources = {one["name"]: one.get("valueFrom", {}).get("secretKeyRef") for one in variables}
    references = {name: source["key"] for name, source in sources.items() if source}
    assert references == {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key"}
    # Nor is it in the output of the pod, or in what was submitted.
    assert secret not in (launcher_of(place.workspace).logs(JOB, driver, 10_000) or "")
    for log in place.workspace.root.glob("logs/*/*/*.log"):
        assert secret not in log.read_text()


def test_what_kubernetes_refuses_is_said_in_its_own_words(place: KubernetesPlace) -> None:
    api, path = place.cluster.api, place.cluster.path
    api.post(path("resourcequotas"), {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}})
    until(lambda: "hard" in api.get(path("resourcequotas", "full"))["status"], "the quota")
    place.counts.add([1, 1])
    place.launch()
    seen = place.wait(JOB, lambda now: now.error is not None, "the refusal")
    assert seen.phase is Phase.FAILED and seen.error is not None and seen.error.code == "SUBMISSION_REFUSED"
    assert "exceeded quota" in seen.error.what and seen.error.retryable
    api.delete(path("resourcequotas", "full"))
    place.supervise()
    place.check()


def test_an_image_or_secret_that_is_not_there_spends_no_restart(place: KubernetesPlace) -> None:
    place.cluster.api.delete(place.cluster.path("secrets", "s3-login"))
    place.counts.add([1, 1, 2])
    driver = place.launch()
    seen = place.wait(JOB, lambda now: "secret" in now.reason, "the kubelet's words")
    assert seen.phase is Phase.STARTING and 'secret "s3-login" not found' in seen.reason
    assert place.verdict() is Action.WAIT
    place.add_secret()
    place.check()
    assert place.incarnation() == driver and place.memory().restarts == []


def test_without_an_api_server_drivers_go_on(place: KubernetesPlace) -> None:
    driver = place.deploy()
    place.cluster.stop_control_plane()
    place.counts.add([1, 30])
    place.counts.check()
    assert place.running().incarnation == driver and place.verdict() is Action.WAIT
    assert place.found(driver).state is StartState.UNKNOWN
    assert not launcher_of(place.workspace).kill(JOB, driver)
    # It can be stopped: that goes by its documents.
    assert driver_control.stop(place.workspace, JOB, by=BY).phase is Phase.STOPPED
    place.cluster.start_control_plane()
    place.cluster.nodes["node-1"].cut_off()
    place.cluster.nodes["node-1"].start()
    until(lambda: place.found(driver).state is StartState.ENDED, "the pod's end to be known")


def test_a_node_that_is_cut_off_keeps_its_driver(place: KubernetesPlace) -> None:
    driver = place.deploy()
    # Kubernetes gives up no node while all are silent: then it takes itself for the one that is cut off.
    place.cluster.add_node("node-2")
    place.cluster.nodes["node-1"].cut_off()
    until(lambda: _terminates(place, driver), "Kubernetes to give the node up")
    place.counts.add([1, 30])
    place.counts.check()
    seen = place.seen()
    assert (seen.phase, seen.incarnation) == (Phase.RUNNING, driver) and place.memory().restarts == []
    # Back again, the node ends the pod as Kubernetes has decided meanwhile.
    place.cluster.nodes["node-1"].start()
    until(lambda: not place.seen().phase.alive, "the end of its driver")
    place.supervise()
    place.counts.add([2, 40])
    place.counts.check()
    place.counts.check_totals()
    assert place.incarnation() != driver and len(place.memory().restarts) == 1


def _terminates(place: KubernetesPlace, incarnation: str) -> bool:
    pod = place.kubernetes_pod(incarnation)
    return pod is None or "deletionTimestamp" in pod["metadata"]


def test_a_driver_over_its_memory_limit_says_so(place: KubernetesPlace) -> None:
    driver = place.deploy()
    _, pod = place.pod(driver)
    if not pod.group.is_dir():
        pytest.skip("no control groups of version 1 here")
    # As if the container had asked for as much as it has now: the next batch is too much.
    stat = dict(line.split() for line in (pod.group / "memory.stat").read_text().splitlines())
    limit = int(stat["total_rss"])
    while True:
        try:
            (pod.group / "memory.limit_in_bytes").write_text(str(limit))
            break
        except OSError as error:
            # More than the processes' own memory can't be given back: the kernel's, and files in memory.
            assert error.errno == errno.EBUSY
            limit += 4 * 2**20
    place.counts.add(list(range(200_000)))
    seen = place.wait(JOB, lambda now: not now.phase.alive, "the end to be noticed")
    assert seen.error is not None and seen.error.code == "OUT_OF_MEMORY" and "memory limit" in seen.error.what
    assert place.verdict() is Action.RESTART
