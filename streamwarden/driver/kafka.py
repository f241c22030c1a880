"""A driver's access to Kafka besides Spark's source: client properties, and whether a topic exists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamwarden.model.source_spec import KafkaSource

__all__ = ["client_properties", "missing_topic"]

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
