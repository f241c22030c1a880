"""Apply row rules to a batch: failing rows leave their output for a quarantine table, in the same batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from streamwarden.driver.causes import headline
from streamwarden.driver.job_api import DELETED, StreamingJob
from streamwarden.errors import StreamwardenError
from streamwarden.model.row_rules import RowRule, quarantine_of
from streamwarden.model.spec import RULES_OUTPUT, JobSpec, SinkSpec

__all__ = ["QUARANTINED", "apply_row_rules", "check_row_rules", "output_schemas"]

QUARANTINED: Final = StructType(
    [
        StructField("row_id", StringType()),
        StructField("batch", LongType()),
        StructField("quarantined_at", TimestampType()),
        StructField("rules", ArrayType(StringType())),
        StructField("reasons", ArrayType(StringType())),
        StructField("source_file", StringType()),
        StructField("source_row", LongType()),
        StructField("source_offset", StringType()),
        StructField("raw", StringType()),
    ]
)
"""Columns of a row that a rule has quarantined.

``row_id`` is a hash of the row and its origin: a repeated batch gives the same. ``raw`` is the row as JSON, without the
columns that are beside it.
"""

_FAILED: Final = "_streamwarden_failed"
_ORIGIN: Final = ("source_file", "source_row")
_RECORD: Final = "_kafka"
_EXACT: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def output_schemas(spec: JobSpec, module: StreamingJob) -> dict[str, StructType]:
    """Return the columns of each output, quarantine tables of row rules included.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``: a rule does not fit the module's columns, or its quarantine table has other columns.
    """
    found = dict(module.OUTPUTS)
    # A quarantine table may have lost its last rule: it gets no rows, and keeps those that it has.
    found |= {sink.output: QUARANTINED for sink in spec.delta_sinks if sink.output.startswith(RULES_OUTPUT)}
    for sink in _judged(spec):
        _check_columns(spec, sink, found[sink.output])
        target = _target(spec, sink)
        own = module.OUTPUTS.get(target.output, StructType())
        for column in QUARANTINED.fields:
            if column.name in own.names and own[column.name].dataType != column.dataType:
                raise StreamwardenError(
                    "SUITE_INVALID",
                    f"{sink.table}.json: meta.rows: column {column.name} of output {target.output} is"
                    f" {own[column.name].dataType.simpleString()}, and {column.dataType.simpleString()} is needed",
                )
        found[target.output] = StructType(
            [*own.fields, *(one for one in QUARANTINED.fields if one.name not in own.names)]
        )
    return found


def check_row_rules(session: SparkSession, spec: JobSpec, module: StreamingJob) -> None:
    """Evaluate each rule once, on a row that is made up: a rule that Spark refuses must not fail each batch.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``.
    """
    for sink in _judged(spec):
        schema = module.OUTPUTS[sink.output]
        # Spark evaluates an inline table when it plans, without a job.
        row = session.sql("VALUES (1)").select(*[_sample(one.dataType).alias(one.name) for one in schema.fields])
        for rule in sink.row_rules:
            try:
                row.select(F.expr(rule.fails)).collect()
            except PySparkException as error:
                words = headline(error) if isinstance(error, AnalysisException) else str(error).splitlines()[0]
                raise StreamwardenError("SUITE_INVALID", f"{sink.table}.json: {rule.id}: {words}") from error


def apply_row_rules(
    spec: JobSpec, outputs: Mapping[str, DataFrame], batch_id: int, planned_ms: int
) -> Mapping[str, DataFrame]:
    """Return the outputs without the rows that fail a rule, and with those rows in their quarantine tables' outputs.

    Parameters
    ----------
    outputs
        A batch's rows by output, from a kept DataFrame: they are read twice.
    planned_ms
        When the batch was planned, milliseconds since the epoch: the same when it is repeated.
    """
    found = dict(outputs)
    for sink in _judged(spec):
        if sink.output not in found:
            continue
        rows = found[sink.output]
        judged = rows.withColumn(_FAILED, _failed(rows, sink.row_rules))
        found[sink.output] = judged.where(F.size(_FAILED) == 0).drop(_FAILED)
        bad = _quarantined(judged.where(F.size(_FAILED) > 0), sink.row_rules, batch_id, planned_ms)
        target = _target(spec, sink).output
        # A module's own rows get null in the columns that only rules fill.
        found[target] = found[target].unionByName(bad, allowMissingColumns=True) if target in found else bad
    return found


def _judged(spec: JobSpec) -> list[SinkSpec]:
    return [sink for sink in spec.delta_sinks if sink.row_rules]


def _target(spec: JobSpec, sink: SinkSpec) -> SinkSpec:
    return next(one for one in spec.delta_sinks if one.table == quarantine_of(sink.table))


def _failed(rows: DataFrame, rules: Sequence[RowRule]) -> Column:
    # Null counts as met. A row that is removed is not judged: it has only keys.
    is_kept = ~F.coalesce(F.col(DELETED), F.lit(False)) if DELETED in rows.columns else F.lit(True)
    return F.array_compact(F.array(*[F.when(is_kept & F.expr(f"({rule.fails})"), F.lit(rule.id)) for rule in rules]))


def _quarantined(bad: DataFrame, rules: Sequence[RowRule], batch_id: int, planned_ms: int) -> DataFrame:
    names = [name for name in bad.columns if name not in (*_ORIGIN, _RECORD, _FAILED, DELETED)]
    raw = F.to_json(F.struct(*[F.col(_quoted(name)) for name in names]), _EXACT)
    words = F.create_map(*[F.lit(text) for rule in rules for text in (rule.id, f"{rule.id}: {rule.reason}")])
    file, row = (
        (F.col(name) if name in bad.columns else F.lit(None)).cast(QUARANTINED[name].dataType) for name in _ORIGIN
    )
    offset: Column = F.lit(None).cast("string")
    if _RECORD in bad.columns:
        offset = F.concat_ws("/", *[F.col(_RECORD)[part].cast("string") for part in ("topic", "partition", "offset")])
    values = {
        "row_id": F.substring(F.sha2(F.concat_ws("\n", F.coalesce(file, offset), row.cast("string"), raw), 256), 1, 16),
        "batch": F.lit(batch_id),
        "quarantined_at": F.timestamp_millis(F.lit(planned_ms)),
        "rules": F.col(_FAILED),
        "reasons": F.transform(_FAILED, lambda one: words[one]),
        "source_file": file,
        "source_row": row,
        "source_offset": offset,
        "raw": raw,
    }
    return bad.select(*[values[one.name].cast(one.dataType).alias(one.name) for one in QUARANTINED.fields])


def _check_columns(spec: JobSpec, sink: SinkSpec, schema: StructType) -> None:
    for rule in sink.row_rules:
        families = set()
        for name, wanted in rule.columns.items():
            if name not in schema.names:
                what = f"{sink.table}.json: {rule.id}: {spec.module} writes no column {name}"
                raise StreamwardenError("SUITE_INVALID", what)
            kind = schema[name].dataType
            family = _family(kind)
            families.add(family)
            fits = wanted in ("any", family) or (wanted == "ordered" and family in ("number", "text", "time"))
            if not fits or (wanted == "ordered" and len(families) > 1):
                what = f"column {name} is {kind.simpleString()}: the rule does not compare such values"
                raise StreamwardenError("SUITE_INVALID", f"{sink.table}.json: {rule.id}: {what}")


def _family(kind: DataType) -> str:
    if isinstance(kind, NumericType):
        return "number"
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return "time"
    return {StringType: "text", BooleanType: "boolean"}.get(type(kind), "other")


def _sample(kind: DataType) -> Column:
    values: dict[str, object] = {"number": 0, "text": "", "boolean": False, "time": datetime(2000, 1, 1, tzinfo=UTC)}
    return F.lit(values.get(_family(kind))).cast(kind)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
