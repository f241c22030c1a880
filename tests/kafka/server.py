"""A real Kafka server for tests: one KRaft node, on free ports of the loopback interface, that wants a password."""

from __future__ import annotations

import secrets
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from confluent_kafka.cimpl import Consumer, Producer, TopicPartition
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from streamwarden.spark.jars import find_java
from tests.ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
JARS = REPOSITORY / ".tools" / "kafka"
USER = "streamwarden"


class KafkaServer:
    """A server that can be stopped and started again: same port, same password, same records."""

    def __init__(self, folder: Path) -> None:
        self.password = secrets.token_hex(16)
        self._log = folder / "server.log"
        self._settings = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        clients, controller = free_ports(2)
        self.address = f"127.0.0.1:{clients}"
        self._settings.write_text(
            f"""\
process.roles=broker,controller
node.id=1
listeners=SASL_PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=SASL_PLAINTEXT://{self.address}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
inter.broker.listener.name=SASL_PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={self.jaas[:-1]} user_{USER}="{self.password}";
log.dirs={folder / "data"}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        # 16 bytes. Not random: one in 64 begins with "-", which the tool takes for an option.
        cluster = urlsafe_b64encode(b"streamwardentest").decode().rstrip("=")
        made = self._java("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._settings))
        assert made.wait(120) == 0, self._log.read_text()[-2000:]

    @property
    def jaas(self) -> str:
        """What a client of Java logs in with."""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return f'{module} required username="{USER}" password="{self.password}";'

    @property
    def client(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": self.password,
            # A line for each failed connection, many a second.
            "log_level": "0",
        }

    def start(self) -> None:
        self._process = self._java("kafka.Kafka", str(self._settings))
        try:
            self._await_answer()
        except KafkaException as error:
            raise AssertionError(self._log.read_text()[-4000:]) from error

    # On a machine with many other JVMs, a login alone takes seconds.
    @retry(
        retry=retry_if_exception_type(KafkaException), wait=wait_fixed(0.5), stop=stop_after_delay(240), reraise=True
    )
    def _await_answer(self) -> None:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()[-2000:]
        AdminClient(self.client).list_topics(timeout=15)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def create(self, topic: str, partitions: int) -> None:
        # Kept until the answer is there: it takes its requests along.
        admin = AdminClient(self.client)
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        admin = AdminClient(self.client)
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        admin = AdminClient(self.client)
        admin.delete_topics([topic])[topic].result(30)
        while topic in admin.list_topics(timeout=10).topics:
            time.sleep(0.2)

    def send(
        self,
        topic: str,
        records: Sequence[tuple[str, str | bytes | None]],
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send records, each a key and a value, and wait until all are there."""
        lost: list[KafkaError] = []
        producer = Producer({**self.client, "linger.ms": 5, "acks": "all"})
        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        for key, value in records:
            producer.produce(
                topic,
                value,
                key,
                headers=list(headers),
                on_delivery=lambda error, _: lost.append(error) if error else None,
                **more,
            )
        assert producer.flush(60) == 0 and not lost, lost

    def reader(self, topic: str) -> Consumer:
        """Return a consumer at the beginning of a topic's partitions."""
        consumer = Consumer({**self.client, "group.id": secrets.token_hex(4), "enable.auto.commit": False})
        there = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in there])
        return consumer

    def drop(self, topic: str, partition: int, before: int) -> None:
        """Remove a partition's records before an offset, as its retention does."""
        where = TopicPartition(topic, partition, before)
        admin = AdminClient(self.client)
        admin.delete_records([where])[where].result(30)

    def _java(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", program]
        with self._log.open("ab") as log:
            return subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
