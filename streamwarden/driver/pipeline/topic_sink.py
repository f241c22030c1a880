"""Send an output's rows to a Kafka topic, at least once, each with the batch that it belongs to."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from streamwarden.driver.job_api import DELETED
from streamwarden.driver.kafka import client_properties
from streamwarden.model.kafka_spec import KafkaSinkSpec

__all__ = ["BATCH_HEADER", "JOB_HEADER", "TopicSink"]

JOB_HEADER = "streamwarden.job"
BATCH_HEADER = "streamwarden.batch"
"""``GENERATION-BATCH``: the same for every try of a batch."""

# Spark's default cuts timestamps to milliseconds.
_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


class TopicSink:
    """A topic that gets an output's rows.

    A batch is sent before it is committed, so no row is missing. If a driver is killed in between, then the next one
    sends the whole batch again, under the same batch header. It is not transactional, and does not create the topic.

    Parameters
    ----------
    spec
        The sink's spec.
    schema
        The columns that the job declares for the output.
    job, generation
        For the records' headers.
    """

    def __init__(self, spec: KafkaSinkSpec, schema: StructType, job: str, generation: int) -> None:
        self.output = spec.output
        self._spec = spec
        self._columns = schema.fieldNames()
        self._job = job
        self._generation = generation

    def records(self, rows: DataFrame, batch_id: int) -> DataFrame:
        """Return the rows as Kafka's columns: key, value and headers. A deleted row has no value."""
        own = [name for name in self._columns if name in rows.columns and name != DELETED]
        value = F.to_json(F.struct(*own), _JSON)
        if DELETED in rows.columns:
            value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
        headers = {JOB_HEADER: self._job, BATCH_HEADER: f"{self._generation}-{batch_id}"}
        return rows.select(
            self._key().cast("binary").alias("key"),
            value.cast("binary").alias("value"),
            F.array(*[_header(name, text) for name, text in headers.items()]).alias("headers"),
        )

    def _key(self) -> Column:
        keys = self._spec.keys
        if len(keys) == 1:
            return F.col(keys[0]).cast("string")
        return F.to_json(F.struct(*keys), _JSON)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Send a batch's rows; returns when the servers have them all.

        Parameters
        ----------
        rows
            The output's rows, from a kept DataFrame.
        batch_id
            The batch's id.
        """
        writer = self.records(rows, batch_id).write.format("kafka").mode("append").option("topic", self._spec.topic)
        # Last: at least once needs it.
        for name, value in {**client_properties(self._spec), "acks": "all"}.items():
            writer = writer.option(f"kafka.{name}", value)
        writer.save()


def _header(name: str, text: str) -> Column:
    return F.struct(F.lit(name).alias("key"), F.lit(text).cast("binary").alias("value"))
