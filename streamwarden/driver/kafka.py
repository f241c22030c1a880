"""A driver's access to Kafka besides Spark's source: client properties, which topics exist, and their ids."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamwarden.errors import StreamwardenError
from streamwarden.model.kafka_spec import KafkaSinkSpec, KafkaSource
from streamwarden.model.spec import JobSpec

__all__ = ["Begin", "TopicIds", "begin_at", "check_topics", "client_properties", "missing_topic"]

_log = logging.getLogger(__name__)

_PREFIX = "STREAMWARDEN_KAFKA_"
_SERVERS = "bootstrap.servers"
_ANSWER_S = 10
"""Seconds that the servers may take to list the topics. 10: a client's first connection, on a slow network."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic on servers that give none."""


def client_properties(
    topic: KafkaSource | KafkaSinkSpec, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties of all clients of a source or sink: those of the YAML, overridden by the environment's.

    ``STREAMWARDEN_KAFKA_SECURITY_PROTOCOL`` sets Kafka's ``security.protocol``, and so on for every property, including
    the servers' addresses: a place can have its own servers for the same YAML.

    Parameters
    ----------
    topic
        The source or sink in the YAML.
    environment
        Default: this process's environment.
    """
    found = os.environ if environment is None else environment
    set_there = {
        name.removeprefix(_PREFIX).lower().replace("_", "."): value
        for name, value in found.items()
        if name.startswith(_PREFIX)
    }
    return {_SERVERS: topic.bootstrap_servers, **set_there}


def missing_topic(session: SparkSession, wanted: KafkaSource | KafkaSinkSpec) -> str | None:
    """Return what is missing, the servers' answer or a topic; None if all topics exist, and of a pattern at least one.

    Parameters
    ----------
    session
        A session with Kafka's jars.
    """
    properties = client_properties(wanted)
    try:
        with _admin(session, properties) as admin:
            there = [str(name) for name in admin.listTopics().names().get()]
    except Py4JJavaError as error:
        return _unanswered(properties, error)
    if isinstance(wanted, KafkaSinkSpec):
        return None if wanted.topic in there else f"Kafka's topic {wanted.topic}, a sink, does not exist yet"
    if wanted.topic_pattern is not None:
        matching = any(wanted.reads(name) for name in there)
        return None if matching else f"Kafka has no topic like {wanted.topic_pattern} yet"
    missing = [name for name in wanted.names if name not in there]
    return f"Kafka's topic {missing[0]} does not exist yet" if missing else None


class TopicIds:
    """The ids that Kafka gave the topics of sources when they were created. Keeps its clients for further calls.

    Parameters
    ----------
    session
        A session with Kafka's jars.
    sources
        The sources of a job.
    """

    def __init__(self, session: SparkSession, sources: Iterable[KafkaSource]) -> None:
        self._jvm: Any = session.sparkContext._jvm
        self._sources = list(sources)
        self._admins: list[Any] = []

    def now(self) -> dict[str, str]:
        """Return the ids by topic.

        Raises
        ------
        Py4JJavaError
            If the servers do not answer, or a topic is gone.
        """
        if not self._admins:
            self._admins = [_open_admin(self._jvm, client_properties(source)) for source in self._sources]
        ids: dict[str, str] = {}
        for source, admin in zip(self._sources, self._admins, strict=True):
            names = self._jvm.java.util.ArrayList()
            matching = (str(one) for one in ([] if source.names else admin.listTopics().names().get()))
            for name in source.names or filter(source.reads, matching):
                names.add(name)
            found = admin.describeTopics(names).allTopicNames().get()
            ids.update({str(name): str(found[name].topicId().toString()) for name in found})
        return {name: one for name, one in sorted(ids.items()) if one != _NO_ID}


def check_topics(spec: JobSpec, found: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Reject a topic that was created anew since the checkpoint read it: its offsets would mean other records.

    Parameters
    ----------
    found
        The topics' ids now; see :class:`TopicIds`.
    known
        Those of the checkpoint.

    Raises
    ------
    StreamwardenError
        ``SOURCE_REPLACED``.
    """
    anew = sorted(name for name, one in found.items() if known.get(name, one) != one)
    if anew:
        what = (
            f"{spec.name}: Kafka's topic {anew[0]} was created anew: its id is {found[anew[0]]}, and the checkpoint has"
            f" read {known[anew[0]]}"
        )
        remedy = (
            "The checkpoint's offsets belong to the topic that is gone. Deploy the job under another name, with tables"
            " of its own: it reads the new topic from its beginning."
        )
        raise StreamwardenError("SOURCE_REPLACED", what, remedy=remedy)


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
    common, topic = jvm.org.apache.kafka.common, source.topic
    assert topic is not None
    with _admin(session, client_properties(source)) as admin:
        topics = jvm.java.util.Collections.singletonList(topic)
        found = admin.describeTopics(topics).allTopicNames().get().get(topic)
        partitions = [one.partition() for one in found.partitions()]

        def offsets(spec: Any) -> dict[int, int]:
            asked = jvm.java.util.HashMap()
            for number in partitions:
                asked.put(common.TopicPartition(topic, number), spec)
            told = admin.listOffsets(asked).all().get()
            return {number: told.get(common.TopicPartition(topic, number)).offset() for number in partitions}

        # -1 is Kafka's answer for a partition without such records.
        since_then, ends = offsets(specs.forTimestamp(int(since.timestamp() * 1000))), offsets(specs.latest())
        return Begin(
            {number: at if at >= 0 else ends[number] for number, at in since_then.items()},
            offsets(specs.earliest()),
            _retention(jvm, admin, topic),
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
def _admin(session: SparkSession, properties: Mapping[str, str]) -> Iterator[Any]:
    """Open an admin client for some calls, which raise after some seconds without an answer."""
    admin = _open_admin(session.sparkContext._jvm, properties)
    try:
        yield admin
    finally:
        admin.close()


def _open_admin(jvm: Any, properties: Mapping[str, str]) -> Any:
    held = jvm.java.util.Properties()
    wanted = {
        **properties,
        "default.api.timeout.ms": str(_ANSWER_S * 1000),
        "request.timeout.ms": str(_ANSWER_S * 500),
    }
    for name, value in wanted.items():
        held.setProperty(name, value)
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(held)


def _unanswered(properties: Mapping[str, str], error: Py4JJavaError) -> str:
    cause = error.java_exception.getCause() or error.java_exception
    return f"Kafka at {properties[_SERVERS]} does not answer: {cause.getMessage()}"
