"""What S3 adds to a storage: servers that go away, answers that are lost, credentials, large files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.runtime.lease import LeaseHolder
from streamwarden.runtime.processes import current_process
from streamwarden.storage import Conflict, S3Files, S3Location, S3Storage
from streamwarden.storage.s3_client import make_client
from streamwarden.store.documents import JobDocuments
from tests.s3.conftest import Place
from tests.s3.proxy import Proxy, Trouble
from tests.s3.server import S3Server

pytestmark = pytest.mark.s3

MB = 1 << 20


def test_of_sixteen_processes_one_creates(s3: Place, tmp_path: Path) -> None:
    script = """
import sys, time
from streamwarden.storage import Conflict, S3Location, S3Storage
storage = S3Storage(S3Location(*sys.argv[1:4]))
storage.read("k")
print("ready", flush=True)
sys.stdin.readline()
try:
    storage.create("k", b"the same bytes")
    print("won")
except Conflict:
    print("lost")
"""
    arguments = [s3.location.bucket, s3.location.prefix, str(s3.location.endpoint)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(16)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
    assert said == ["lost"] * 15 + ["won"]


def test_a_write_whose_answer_was_lost_is_known_again(s3: Place, through_proxy: S3Location, proxy: Proxy) -> None:
    storage = S3Storage(through_proxy)
    etag = storage.create("counter", b"0")
    # Every second answer to a PUT gets lost: the repetition is refused by what the first try has done.
    proxy.trouble = Trouble(lose_answer=0.5, methods=("PUT",))
    for number in range(1, 25):
        etag = storage.replace("counter", b"%d" % number, etag)
    assert proxy.seen["lose_answer"] > 5
    entry = S3Storage(s3.location).read("counter")
    assert entry is not None and entry.data == b"24"


def test_a_lost_answer_does_not_turn_anothers_write_into_ones_own(through_proxy: S3Location, proxy: Proxy) -> None:
    storage = S3Storage(through_proxy)
    storage.create("k", b"the same bytes")
    proxy.trouble = Trouble(lose_answer=0.5, methods=("PUT",))
    refused = 0
    for _ in range(8):
        # Where all answers are lost nobody knows; but it is never taken for one's own.
        with pytest.raises((Conflict, StreamwardenError)) as caught:
            storage.create("k", b"the same bytes")
        refused += caught.type is Conflict
    assert refused and proxy.seen["lose_answer"] > 3


def test_a_renewal_whose_answer_was_lost_costs_nobody_the_lease(
    s3: Place, through_proxy: S3Location, proxy: Proxy
) -> None:
    documents = JobDocuments(S3Storage(through_proxy), "job")
    holder = LeaseHolder(documents, "one", current_process(), timedelta(seconds=30))
    holder.acquire()
    # The first answer, those to its repetitions, and the look at what stands there: all lost.
    proxy.trouble = Trouble(lose_answer=1.0, methods=("PUT", "HEAD"))
    with pytest.raises(StreamwardenError) as caught:
        holder.renew()
    assert caught.value.code == "S3_UNREACHABLE"
    proxy.trouble = Trouble()
    stored = JobDocuments(S3Storage(s3.location), "job").lease.read()
    assert stored is not None and stored.renewals == 1, "it was done all the same"
    holder.renew()
    with pytest.raises(StreamwardenError) as caught:
        LeaseHolder(documents, "two", current_process(), timedelta(seconds=30)).acquire()
    assert caught.value.code == "LEASE_HELD"


def test_of_two_holders_one_has_the_lease(s3: Place) -> None:
    ttl = timedelta(seconds=30)
    documents = [JobDocuments(S3Storage(s3.location), "job") for _ in range(2)]
    holders = [LeaseHolder(documents[n], f"holder-{n}", current_process(), ttl) for n in range(2)]
    outcome: dict[int, str] = {}

    def take(number: int) -> None:
        try:
            outcome[number] = str(holders[number].acquire().epoch)
        except StreamwardenError as error:
            outcome[number] = error.code

    threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.values()) == ["1", "LEASE_HELD"]
    winner = next(number for number, said in outcome.items() if said == "1")
    holders[winner].renew()
    holders[winner].release()
    assert holders[1 - winner].acquire().epoch == 2
    with pytest.raises(StreamwardenError) as caught:
        holders[winner].renew()
    assert caught.value.code == "LEASE_LOST"


@pytest.mark.parametrize(
    ("variable", "value"), [("AWS_SECRET_ACCESS_KEY", "wrong" * 8), ("AWS_ACCESS_KEY_ID", "nobody")]
)
def test_wrong_credentials_are_refused_and_not_shown(
    s3: Place, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    make_client.cache_clear()
    for call in (
        lambda: S3Storage(s3.location).read("a"),
        lambda: S3Storage(s3.location).create("a", b""),
        lambda: S3Files(s3.location).copy("a", "b"),
        lambda: list(S3Files(s3.location).walk("a")),
    ):
        with pytest.raises(StreamwardenError) as caught:
            call()
        assert caught.value.code == "S3_REFUSED" and not caught.value.retryable
        for secret in (s3.secret_key, os.environ["AWS_SECRET_ACCESS_KEY"]):
            assert secret not in str(caught.value)


def test_no_credentials_at_all(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    make_client.cache_clear()
    with pytest.raises(StreamwardenError) as caught:
        S3Storage(s3.location).read("a")
    assert caught.value.code == "S3_CREDENTIALS_MISSING"


def test_a_bucket_that_is_not_there(s3: Place) -> None:
    nowhere = replace(s3.location, bucket="there-is-no-such-bucket")
    for call in (
        lambda: S3Storage(nowhere).read("a"),
        lambda: S3Storage(nowhere).create("a", b""),
        lambda: S3Files(nowhere).copy("a", "b"),
        lambda: S3Files(nowhere).hash("a"),
        lambda: S3Files(nowhere).delete_tree("a"),
    ):
        with pytest.raises(StreamwardenError) as caught:
            call()
        assert caught.value.code == "S3_BUCKET_MISSING"


def test_a_server_that_is_away_is_said_so_soon(s3: Place, server: S3Server) -> None:
    server.stop()
    began = time.monotonic()
    for call in (
        lambda: S3Storage(s3.location).read("a"),
        lambda: S3Storage(s3.location).create("a", b""),
        lambda: S3Files(s3.location, patience_s=1).hash("a"),
    ):
        with pytest.raises(StreamwardenError) as caught:
            call()
        assert caught.value.code == "S3_UNREACHABLE" and caught.value.retryable
    assert time.monotonic() - began < 60


def wait_for_copies(server: S3Server, s3: Place, number: int) -> None:
    """Wait until some of the files are copied, by a look at the server's disk: asking it would take its time."""
    folder = server.data / s3.location.bucket / s3.location.prefix / "b"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= number:
            return
        time.sleep(0.002)
    raise AssertionError("nothing is copied")


@pytest.mark.long
@pytest.mark.ci
def test_a_server_that_is_restarted_in_the_middle_of_a_copy(s3: Place, server: S3Server) -> None:
    files = S3Files(s3.location)
    content = {f"a/{number:03d}": os.urandom(20_000) for number in range(300)}
    for key, data in content.items():
        files.write(key, data)
    pairs = [(key, key.replace("a/", "b/")) for key in content]
    killed = threading.Event()

    def restart() -> None:
        wait_for_copies(server, s3, 50)
        server.kill()
        killed.set()
        time.sleep(1.5)
        server.start()

    helper = threading.Thread(target=restart)
    helper.start()
    files.copy_many(pairs)
    helper.join()
    assert killed.is_set()
    assert {info.key for info in files.walk("b")} == {target for _, target in pairs}
    for key, hashed in files.hash_many(target for _, target in pairs).items():
        assert hashed.sha256 == hashlib.sha256(content[key.replace("b/", "a/")]).hexdigest()


def test_a_copy_that_gives_up_leaves_whole_files_only(s3: Place, server: S3Server) -> None:
    files = S3Files(s3.location, patience_s=0.5)
    data = os.urandom(2 * MB)
    for number in range(40):
        files.write(f"a/{number:02d}", data)

    def kill() -> None:
        wait_for_copies(server, s3, 8)
        server.kill()

    helper = threading.Thread(target=kill)
    helper.start()
    with pytest.raises(StreamwardenError) as caught:
        files.copy_many((f"a/{number:02d}", f"b/{number:02d}") for number in range(40))
    assert caught.value.code == "S3_UNREACHABLE"
    helper.join()
    server.start()
    copied = [info.key for info in files.walk("b")]
    assert 8 <= len(copied) < 40
    assert {one.sha256 for one in files.hash_many(copied).values()} == {hashlib.sha256(data).hexdigest()}


def test_throttled_requests_are_repeated(s3: Place, through_proxy: S3Location, proxy: Proxy) -> None:
    storage, files = S3Storage(through_proxy), S3Files(through_proxy)
    proxy.trouble = Trouble(slow_down=0.3)
    for number in range(8):
        files.write(f"a/{number}", b"x")
    files.copy_many((f"a/{number}", f"b/{number}") for number in range(8))
    assert len(list(files.walk("b"))) == 8
    assert proxy.seen["slow_down"] > 3
    proxy.trouble = Trouble(slow_down=1.0)
    with pytest.raises(StreamwardenError) as caught:
        storage.read("a/1")
    assert caught.value.code == "S3_THROTTLED" and caught.value.retryable


def test_lost_connections_are_made_anew(s3: Place, through_proxy: S3Location, proxy: Proxy) -> None:
    files = S3Files(through_proxy)
    proxy.trouble = Trouble(lose_request=0.2, lose_answer=0.1, delay_s=0.002)
    for number in range(20):
        files.write(f"a/{number}", b"%d" % number)
    files.copy_many((f"a/{number}", f"b/{number}") for number in range(20))
    assert proxy.seen["lose_request"] > 3 and proxy.seen["lose_answer"] > 1
    assert {info.key: files.read(info.key) for info in files.walk("b")} == {f"b/{n}": b"%d" % n for n in range(20)}


@pytest.mark.parametrize("size", [10 * MB, 10 * MB + 1, 12 * MB])
def test_a_large_file_is_copied_by_parts(s3: Place, size: int) -> None:
    files = S3Files(s3.location, copied_at_once=5 * MB)
    data = os.urandom(size)
    files.write("a/large", data)
    files.copy("a/large", "b/large")
    assert files.read("b/large") == data
    # An ETag with a dash is one of a multipart upload.
    assert "-" in s3.client().head_object(Bucket=s3.location.bucket, Key="some/place/b/large")["ETag"]
    assert s3.client().list_multipart_uploads(Bucket=s3.location.bucket).get("Uploads", []) == []


def test_a_copy_by_parts_that_fails_leaves_nothing(s3: Place, through_proxy: S3Location, proxy: Proxy) -> None:
    files = S3Files(through_proxy, copied_at_once=5 * MB, patience_s=0)
    files.write("a/large", os.urandom(12 * MB))
    proxy.trouble = Trouble(lose_request=1.0, methods=("PUT",))
    with pytest.raises(StreamwardenError):
        files.copy("a/large", "b/large")
    assert list(S3Files(s3.location).walk("b")) == []
    assert s3.client().list_multipart_uploads(Bucket=s3.location.bucket).get("Uploads", []) == []


def test_a_damaged_object_is_found_by_its_hash(s3: Place, server: S3Server) -> None:
    files = S3Files(s3.location)
    data = os.urandom(MB)
    files.write("a/1", data)
    assert files.hash("a/1").sha256 == hashlib.sha256(data).hexdigest()
    stored = server.data / s3.location.bucket / s3.location.prefix / "a/1"
    with stored.open("r+b") as stream:
        stream.seek(MB // 2)
        stream.write(b"\0" * 16)
    hashed = files.hash("a/1")
    assert hashed.size == MB and hashed.sha256 != hashlib.sha256(data).hexdigest()
    # Read as a whole, it is refused by the checksum that was stored with it.
    with pytest.raises(StreamwardenError) as caught:
        files.read("a/1")
    assert caught.value.code == "S3_OBJECT_DAMAGED"


def test_marks_of_folders_are_no_files_and_go_with_their_tree(s3: Place) -> None:
    client, files, storage = s3.client(), S3Files(s3.location), S3Storage(s3.location)
    # As Spark leaves them behind.
    for key in ("some/place/a/", "some/place/a/empty/"):
        client.put_object(Bucket=s3.location.bucket, Key=key)
    files.write("a/1", b"x")
    assert [info.key for info in files.walk("a")] == storage.list("a") == ["a/1"]
    assert files.folders("a") == ["empty"]
    assert files.delete_tree("a") == 1
    assert client.list_objects_v2(Bucket=s3.location.bucket).get("Contents", []) == []


def test_a_whole_bucket_needs_no_prefix(s3: Place) -> None:
    whole = replace(s3.location, prefix="")
    S3Storage(whole).write("control/a.json", b"1")
    assert S3Storage(whole).list("control") == ["control/a.json"]
    assert S3Files(whole).folders("control") == [] and whole.uri("s3a") == f"s3a://{whole.bucket}"
    assert S3Storage(s3.location).list("control") == []


def test_more_than_one_listings_worth_is_walked_and_deleted(s3: Place) -> None:
    files = S3Files(s3.location)
    files.write("a/0000", b"x")
    files.copy_many(("a/0000", f"a/{number:04d}") for number in range(1, 1_050))
    assert len(list(files.walk("a"))) == 1_050
    assert files.delete_tree("a") == 1_050
    assert list(files.walk("a")) == []
