from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.runtime.lease import LeaseHolder, lease_is_live
from streamwarden.runtime.processes import current_process, is_alive, process_of
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments

pytestmark = pytest.mark.unit

TTL = timedelta(seconds=30)
ELSEWHERE = ProcessRef(host="another-machine", boot="b", pid=1, started=0)


@pytest.fixture
def documents(tmp_path: Path) -> JobDocuments:
    return JobDocuments(LocalStorage(tmp_path), "job")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_held_lease_is_refused_and_its_holder_named(documents: JobDocuments) -> None:
    LeaseHolder(documents, "one", current_process(), TTL).acquire()
    with pytest.raises(StreamwardenError) as caught:
        LeaseHolder(documents, "two", current_process(), TTL).acquire()
    assert caught.value.code == "LEASE_HELD"
    assert "one" in caught.value.what


def test_released_it_is_free_and_its_epoch_grows(documents: JobDocuments) -> None:
    one = LeaseHolder(documents, "one", current_process(), TTL)
    assert one.acquire().epoch == 1
    one.release()
    assert LeaseHolder(documents, "two", current_process(), TTL).acquire().epoch == 2


def test_a_dead_holder_of_this_machine_is_not_waited_for(
    documents: JobDocuments, child: subprocess.Popen[bytes]
) -> None:
    lease = LeaseHolder(documents, "one", process_of(child.pid), TTL).acquire()
    assert lease_is_live(lease)
    # Killed and not yet reaped by its parent: a zombie writes nothing either.
    child.kill()
    while is_alive(lease.process):
        time.sleep(0.01)
    began = time.monotonic()
    LeaseHolder(documents, "two", current_process(), TTL).acquire()
    assert time.monotonic() - began < 5


def test_a_living_jvm_of_a_dead_driver_keeps_the_lease(documents: JobDocuments, child: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    reference = process_of(gone.pid)
    holder = LeaseHolder(documents, "one", reference, TTL)
    holder.acquire()
    holder.renew(jvm=process_of(child.pid))
    gone.wait()
    with pytest.raises(StreamwardenError, match="LEASE_HELD"):
        LeaseHolder(documents, "two", current_process(), TTL).acquire()
    child.kill()
    child.wait()
    LeaseHolder(documents, "two", current_process(), TTL).acquire(wait=timedelta(seconds=5))


def test_of_a_holder_elsewhere_only_the_expiry_counts(documents: JobDocuments) -> None:
    LeaseHolder(documents, "one", ELSEWHERE, timedelta(hours=1)).acquire()
    two = LeaseHolder(documents, "two", current_process(), TTL)
    with pytest.raises(StreamwardenError, match="LEASE_HELD"):
        two.acquire()
    held = documents.lease.read()
    assert held is not None
    documents.lease.write(held.model_copy(update={"expires_at": utc_now() + timedelta(seconds=1)}))
    two.acquire(wait=timedelta(seconds=60))


def test_waiting_ends_when_the_holder_shows_that_it_lives(documents: JobDocuments) -> None:
    one = LeaseHolder(documents, "one", ELSEWHERE, timedelta(seconds=60))
    one.acquire()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.2):
            one.renew()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        began = time.monotonic()
        with pytest.raises(StreamwardenError, match="LEASE_HELD"):
            LeaseHolder(documents, "two", current_process(), TTL).acquire(wait=timedelta(seconds=90))
        # Not after the minute that the lease would last.
        assert time.monotonic() - began < 30
    finally:
        done.set()
        thread.join()


def test_one_that_was_taken_over_is_lost_for_good(documents: JobDocuments) -> None:
    one = LeaseHolder(documents, "one", ELSEWHERE, timedelta(milliseconds=100))
    one.acquire()
    time.sleep(0.15)
    two = LeaseHolder(documents, "two", current_process(), TTL)
    taken = two.acquire()
    for _ in range(2):
        with pytest.raises(StreamwardenError) as caught:
            one.renew()
        assert caught.value.code == "LEASE_LOST"
    one.release()
    assert documents.lease.read() == taken


def test_of_many_racing_for_it_one_gets_it(documents: JobDocuments) -> None:
    outcomes: list[str] = []

    def race(name: str) -> None:
        try:
            LeaseHolder(documents, name, current_process(), TTL).acquire()
            outcomes.append(name)
        except StreamwardenError as error:
            assert error.code == "LEASE_HELD"

    threads = [threading.Thread(target=race, args=(f"i{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lease = documents.lease.read()
    assert lease is not None
    assert outcomes == [lease.incarnation]
