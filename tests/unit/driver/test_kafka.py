"""What the environment says to Kafka's clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamwarden.driver.kafka import check_topics, client_properties, missing_topic
from streamwarden.driver.pipeline.source import open_source
from streamwarden.errors import StreamwardenError
from streamwarden.model.kafka_spec import KafkaSinkSpec, KafkaSource
from streamwarden.store.workspace import Workspace

pytestmark = pytest.mark.unit

SOURCE = KafkaSource(kind="kafka", topic="trips", bootstrap_servers="yaml:9092")


class Asked(dict[str, str]):
    """Stands for what Java and Spark keep options in, and for whatever is made of them."""

    def setProperty(self, name: str, value: str) -> None:
        self[name] = value

    def option(self, name: str, value: str) -> Asked:
        self[name] = value
        return self

    def load(self) -> Asked:
        return self


def test_a_variable_is_a_property() -> None:
    environment = {
        "STREAMWARDEN_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG": 'Module required password="a_B";',
        "STREAMWARDEN_ROOT": "elsewhere",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
    }
    assert client_properties(SOURCE, environment) == {
        "bootstrap.servers": "yaml:9092",
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": 'Module required password="a_B";',
    }


def test_the_servers_of_the_environment_are_those_that_are_asked_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWARDEN_KAFKA_BOOTSTRAP_SERVERS", "place:9092")
    asked, read = Asked(), Asked()
    admin: Any = SimpleNamespace(close=lambda: None)
    admin.listTopics = lambda: SimpleNamespace(names=lambda: SimpleNamespace(get=lambda: ["trips"]))
    kafka = SimpleNamespace(
        clients=SimpleNamespace(admin=SimpleNamespace(AdminClient=SimpleNamespace(create=lambda _: admin)))
    )
    jvm = SimpleNamespace(
        java=SimpleNamespace(util=SimpleNamespace(Properties=lambda: asked)),
        org=SimpleNamespace(apache=SimpleNamespace(kafka=kafka)),
    )
    session: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(_jvm=jvm), readStream=SimpleNamespace(format=lambda _: read)
    )
    spec: Any = SimpleNamespace(name="job", inputs={"source": SOURCE}, sources=None)
    workspace: Workspace = SimpleNamespace(config=None)  # type: ignore[assignment]
    assert missing_topic(session, SOURCE) is None
    several = SOURCE.model_copy(update={"topic": None, "topics": ("trips", "fares")})
    assert missing_topic(session, several) == "Kafka's topic fares does not exist yet"
    like = SOURCE.model_copy(update={"topic": None, "topic_pattern": "tr.*"})
    assert missing_topic(session, like) is None
    # The whole name must match.
    like = like.model_copy(update={"topic_pattern": "tr"})
    assert missing_topic(session, like) == "Kafka has no topic like tr yet"
    sink = KafkaSinkSpec(kind="kafka", topic="alerts", bootstrap_servers="yaml:9092", keys=("zone",))
    assert missing_topic(session, sink) == "Kafka's topic alerts, a sink, does not exist yet"
    open_source(session, workspace, spec, "source")
    assert asked["bootstrap.servers"] == read["kafka.bootstrap.servers"] == "place:9092"


def test_a_topic_that_was_made_anew_is_refused() -> None:
    spec: Any = SimpleNamespace(name="job")
    check_topics(spec, {"a": "1", "b": "2"}, {"a": "1", "gone": "9"})
    with pytest.raises(StreamwardenError, match="topic a was created anew: its id is 3") as caught:
        check_topics(spec, {"a": "3", "b": "2"}, {"a": "1"})
    assert caught.value.code == "SOURCE_REPLACED" and "another name" in caught.value.remedy
