from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import Place, place  # noqa: F401
from tests.kafka.server import JARS, KafkaServer


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    if not any(JARS.glob("kafka_*.jar")):
        pytest.fail(f"no Kafka server: {JARS} is empty. Run `make kafka-server`.")
    made = KafkaServer(tmp_path_factory.mktemp("kafka"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def kafka(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> KafkaServer:
    """The server, with credentials in the environment, of this process and of those that it starts."""
    for name, value in {
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "PLAIN",
        "SASL_JAAS_CONFIG": kafka_server.jaas,
        # A batch fails within a test's patience when the servers are away.
        "DEFAULT_API_TIMEOUT_MS": "5000",
        "REQUEST_TIMEOUT_MS": "3000",
    }.items():
        monkeypatch.setenv(f"STREAMWARDEN_KAFKA_{name}", value)
    return kafka_server
