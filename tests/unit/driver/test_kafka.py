"""What the environment says to Kafka's clients."""

from __future__ import annotations

import pytest

from streamwarden.driver.kafka import client_properties

pytestmark = pytest.mark.unit


def test_a_variable_is_a_property() -> None:
    environment = {
        "STREAMWARDEN_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG": 'Module required password="a_B";',
        "STREAMWARDEN_ROOT": "elsewhere",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
    }
    assert client_properties(environment) == {
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": 'Module required password="a_B";',
    }
