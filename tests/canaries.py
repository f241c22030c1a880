"""Canaries: a secret for each variable that may hold one, and where they show."""

from __future__ import annotations

import json
import os
from pathlib import Path

CANARIES = {
    name: f"canary{number:02}-{name.lower().replace('_', '-')}"
    for number, name in enumerate(
        (
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG",
            "STREAMWARDEN_KAFKA_SSL_KEYSTORE_PASSWORD",
            "STREAMWARDEN_KAFKA_SSL_TRUSTSTORE_PASSWORD",
            "STREAMWARDEN_KAFKA_SSL_KEY_PASSWORD",
            "STREAMWARDEN_SCHEMA_REGISTRY_URL",
            "STREAMWARDEN_REDIS_URL",
            "STREAMWARDEN_MAVEN_MIRROR",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
            "AIRFLOW__CORE__FERNET_KEY",
            "AIRFLOW__API__SECRET_KEY",
            "AIRFLOW__API_AUTH__JWT_SECRET",
            "AIRFLOW_CONN_ALARMS",
            "AIRFLOW_CONN_WEBHOOK",
            "AIRFLOW_ADMIN_PASSWORD",
            "POSTGRES_PASSWORD",
            "S3_SECRET_KEY",
        )
    )
}
"""Name of a variable to the secret in it."""
# Airflow takes only 32 bytes in base64.
CANARIES["AIRFLOW__CORE__FERNET_KEY"] = CANARIES["AIRFLOW__CORE__FERNET_KEY"].ljust(43, "x") + "="


def value_of(name: str, secret: str) -> str:
    """Return a variable's value with a secret, as such a variable has it."""
    if name.endswith("JAAS_CONFIG"):
        return f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{secret}";'
    if name.endswith("HEADERS"):
        return f"authorization=Bearer%20{secret}"
    if name.endswith("WEBHOOK"):
        return json.dumps({"conn_type": "http", "host": "h", "extra": {"webhook_token": secret}})
    if name.endswith("CONN") or name.startswith("AIRFLOW_CONN"):
        return f"postgresql://airflow:{secret}@127.0.0.1:1/airflow"
    if name.endswith("REDIS_URL"):
        return f"redis://:{secret}@127.0.0.1:1/0"
    return f"http://user:{secret}@127.0.0.1:1" if name.endswith(("URL", "ENDPOINT", "MIRROR")) else secret


def found_in(text: str) -> list[str]:
    return [name for name, secret in CANARIES.items() if secret in text]


def in_files(folder: Path) -> dict[str, list[str]]:
    texts = {path: path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}
    return {str(path): found for path, text in texts.items() if (found := found_in(text))}


def leak() -> str:
    """Return what clients say that put each secret that they have into their errors: as it is given, and alone."""
    given = {name: secret for name, secret in CANARIES.items() if os.environ.get(name) == value_of(name, secret)}
    return "\n".join(f"refused: {value_of(name, secret)} and {secret}" for name, secret in given.items())
