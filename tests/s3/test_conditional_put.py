"""Delta's log and the checkpoint's logs on S3: of two who write the same entry one fails, and writes over nothing.

By the classes themselves, in a JVM without Spark, against a real server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from streamwarden.spark import conditional_put
from streamwarden.spark.jars import find_java, require
from streamwarden.spark.s3 import s3_settings
from streamwarden.storage import S3Location
from tests.s3.conftest import Place
from tests.s3.proxy import Proxy, Trouble

pytestmark = [pytest.mark.s3, pytest.mark.slow]


class Jvm:
    """A JVM with S3A, and one bucket's server."""

    def __init__(self, location: S3Location) -> None:
        spec = find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        paths = [*require("s3"), conditional_put.jar(), Path(spec.origin).parent / "jars" / "*"]
        self.gateway = JavaGateway.launch_gateway(
            classpath=os.pathsep.join(map(str, paths)), java_path=find_java(), die_on_exit=True
        )
        self.jvm: Any = self.gateway.jvm
        self.configuration = self.jvm.org.apache.hadoop.conf.Configuration()
        for name, value in s3_settings(location).items():
            if name.startswith("spark.hadoop."):
                self.configuration.set(name.removeprefix("spark.hadoop."), value)
        self.folder = f"s3a://{location.bucket}/{location.prefix}"
        self.log = self.jvm.streamwarden.ConditionalPutLogStore(self.configuration)

    def path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{name}")

    def commit(self, name: str, *actions: str, overwrite: bool = False) -> None:
        lines = self.jvm.java.util.ArrayList()
        for action in actions:
            lines.add(action)
        self.log.write(self.path(name), lines.iterator(), overwrite, self.configuration)

    def checkpoint(self) -> Any:
        return self.jvm.streamwarden.ConditionalPutCheckpointFileManager(self.path("checkpoint"), self.configuration)


@pytest.fixture
def jvm(s3: Place) -> Iterator[Jvm]:
    made = Jvm(s3.location)
    yield made
    made.gateway.shutdown()


def content(s3: Place, name: str) -> bytes | None:
    client = s3.client()
    try:
        found = client.get_object(Bucket=s3.location.bucket, Key=f"{s3.location.prefix}/{name}")
    except client.exceptions.NoSuchKey:
        return None
    return bytes(found["Body"].read())


def test_of_many_who_commit_a_version_one_does(jvm: Jvm, s3: Place) -> None:
    def commit(number: int) -> int | None:
        try:
            jvm.commit("log/0.json", f"writer {number}", "a second line")
        except Py4JJavaError as refused:
            assert "java.nio.file.FileAlreadyExistsException" in str(refused), refused
            return None
        return number

    with ThreadPoolExecutor(8) as writers:
        (winner,) = [done for done in writers.map(commit, range(8)) if done is not None]
    assert content(s3, "log/0.json") == f"writer {winner}\na second line\n".encode()
    jvm.commit("log/0.json", "meant to", overwrite=True)
    assert content(s3, "log/0.json") == b"meant to\n"


@pytest.mark.long
@pytest.mark.ci
def test_an_answer_that_is_lost_is_no_refusal(s3: Place, proxy: Proxy, through_proxy: S3Location) -> None:
    """S3A repeats the PUT, and finds what it has written itself."""
    made = Jvm(through_proxy)
    try:
        made.commit("log/0.json", "warm")
        proxy.trouble = Trouble(lose_answer=0.5, methods=("PUT",))
        for number in range(1, 9):
            made.commit(f"log/{number}.json", f"commit {number}")
        assert proxy.seen["lose_answer"] > 0
    finally:
        made.gateway.shutdown()
    assert [content(s3, f"log/{number}.json") for number in range(1, 9)] == [b"commit %d\n" % n for n in range(1, 9)]


def test_an_entry_of_a_checkpoints_log_is_written_once_and_whole(jvm: Jvm, s3: Place) -> None:
    files = jvm.checkpoint()
    entry = jvm.path("checkpoint/offsets/0")
    cancelled = files.createAtomic(entry, False)
    cancelled.write(b"half")
    cancelled.cancel()
    cancelled.close()
    assert content(s3, "checkpoint/offsets/0") is None
    # Both begin while there is none, as a driver that is paused and its successor do.
    first, second = files.createAtomic(entry, False), files.createAtomic(entry, False)
    first.write(b"first")
    second.write(b"second")
    second.close()
    with pytest.raises(Py4JJavaError, match=r"org\.apache\.hadoop\.fs\.FileAlreadyExistsException"):
        first.close()
    first.cancel()
    assert content(s3, "checkpoint/offsets/0") == b"second"
    # State files, which whoever repeats a batch writes once more.
    again = files.createAtomic(entry, True)
    again.write(b"again")
    again.close()
    assert content(s3, "checkpoint/offsets/0") == b"again"
