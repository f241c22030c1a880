"""What a driver asks of Kafka beside Spark's source: how to get in, and whether a topic is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamwarden.model.spec import KafkaSource

__all__ = ["client_properties", "missing_topic"]

_PREFIX = "STREAMWARDEN_KAFKA_"
_SERVERS = "bootstrap.servers"
_ANSWER_S = 10
"""How long the servers may take to say which topics there are. 10: a client's first connection, on a slow network."""


def client_properties(source: KafkaSource, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of every client of a source: the source's, and over them what the environment sets.

    ``STREAMWARDEN_KAFKA_SECURITY_PROTOCOL`` is Kafka's ``security.protocol``, and so for every property, the servers'
    addresses among them: so a place can have servers of its own for the same YAML.

    Parameters
    ----------
    source
        As the YAML says.
    environment
        Default this process's.
    """
    found = os.environ if environment is None else environment
    set_there = {
        name.removeprefix(_PREFIX).lower().replace("_", "."): value
        for name, value in found.items()
        if name.startswith(_PREFIX)
    }
    return {_SERVERS: source.bootstrap_servers, **set_there}


def missing_topic(session: SparkSession, source: KafkaSource) -> str | None:
    """Say what is missing of a topic: the servers' answer, or the topic; None if it is there.

    Parameters
    ----------
    session
        One with Kafka's jars.
    """
    jvm: Any = session.sparkContext._jvm
    properties = jvm.java.util.Properties()
    wanted = {
        **client_properties(source),
        "default.api.timeout.ms": str(_ANSWER_S * 1000),
        "request.timeout.ms": str(_ANSWER_S * 500),
    }
    for name, value in wanted.items():
        properties.setProperty(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            names = admin.listTopics().names().get()
        finally:
            admin.close()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        return f"Kafka at {wanted[_SERVERS]} does not answer: {cause.getMessage()}"
    return None if source.topic in names else f"Kafka's topic {source.topic} does not exist yet"
