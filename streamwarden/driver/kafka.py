"""A driver's access to Kafka besides Spark's source: client properties, and whether a topic exists."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamwarden.model.source_spec import KafkaSource

__all__ = ["Begin", "begin_at", "client_properties", "missing_topic"]

_log = logging.getLogger(__name__)

_PREFIX = "STREAMWARDEN_KAFKA_"
_SERVERS = "bootstrap.servers"
_ANSWER_S = 10
"""Seconds that the servers may take to list the topics. 10: a client's first connection, on a slow network."""


def client_properties(source: KafkaSource, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of all clients of a source: the source's, overridden by the environment's.

    ``STREAMWARDEN_KAFKA_SECURITY_PROTOCOL`` sets Kafka's ``security.protocol``, and so on for every property, including
    the servers' addresses: a place can have its own servers for the same YAML.

    Parameters
    ----------
    source
        The source in the YAML.
    environment
        Default: this process's environment.
    """
    found = os.environ if environment is None else environment
    set_there = {
        name.removeprefix(_PREFIX).lower().replace("_", "."): value
        for name, value in found.items()
        if name.startswith(_PREFIX)
    }
    return {_SERVERS: source.bootstrap_servers, **set_there}


def missing_topic(session: SparkSession, source: KafkaSource) -> str | None:
    """Return what is missing, the servers' answer or the topic; None if the topic exists.

    Parameters
    ----------
    session
        A session with Kafka's jars.
    """
    try:
        with _admin(session, source) as admin:
            names = admin.listTopics().names().get()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        servers = client_properties(source)[_SERVERS]
        return f"Kafka at {servers} does not answer: {cause.getMessage()}"
    return None if source.topic in names else f"Kafka's topic {source.topic} does not exist yet"


@dataclass(frozen=True)
class Begin:
    """Where a topic is read from.

    Parameters
    ----------
    offsets
        The first offset of each partition.
    oldest
        The oldest offset that each partition still has.
    retention
        How long the topic keeps its records; None for ever, or if the servers do not tell.
    """

    offsets: dict[int, int]
    oldest: dict[int, int]
    retention: timedelta | None


def begin_at(session: SparkSession, source: KafkaSource, since: datetime) -> Begin:
    """Return where the records of a time and later begin; in a partition without such records, its end."""
    jvm: Any = session.sparkContext._jvm
    specs = jvm.org.apache.kafka.clients.admin.OffsetSpec
    common = jvm.org.apache.kafka.common
    with _admin(session, source) as admin:
        topics = jvm.java.util.Collections.singletonList(source.topic)
        found = admin.describeTopics(topics).allTopicNames().get().get(source.topic)
        partitions = [one.partition() for one in found.partitions()]

        def offsets(spec: Any) -> dict[int, int]:
            asked = jvm.java.util.HashMap()
            for number in partitions:
                asked.put(common.TopicPartition(source.topic, number), spec)
            told = admin.listOffsets(asked).all().get()
            return {number: told.get(common.TopicPartition(source.topic, number)).offset() for number in partitions}

        # -1 is Kafka's answer for a partition without such records.
        since_then, ends = offsets(specs.forTimestamp(int(since.timestamp() * 1000))), offsets(specs.latest())
        return Begin(
            {number: at if at >= 0 else ends[number] for number, at in since_then.items()},
            offsets(specs.earliest()),
            _retention(jvm, admin, source.topic),
        )


def _retention(jvm: Any, admin: Any, topic: str) -> timedelta | None:
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    asked = resource(resource.Type.TOPIC, topic)
    try:
        config = admin.describeConfigs(jvm.java.util.Collections.singletonList(asked)).all().get().get(asked)
    except Py4JJavaError as error:
        # A client may be allowed to read a topic and not its settings.
        _log.warning("the retention of topic %s is not known: %s", topic, error.java_exception.getMessage())
        return None
    milliseconds = int(config.get("retention.ms").value())
    return timedelta(milliseconds=milliseconds) if milliseconds >= 0 else None


@contextmanager
def _admin(session: SparkSession, source: KafkaSource) -> Iterator[Any]:
    """Open an admin client, whose calls raise after some seconds without an answer."""
    jvm: Any = session.sparkContext._jvm
    properties = jvm.java.util.Properties()
    wanted = {
        **client_properties(source),
        "default.api.timeout.ms": str(_ANSWER_S * 1000),
        "request.timeout.ms": str(_ANSWER_S * 500),
    }
    for name, value in wanted.items():
        properties.setProperty(name, value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        yield admin
    finally:
        admin.close()
