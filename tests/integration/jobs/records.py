"""A job with state over records of Kafka: trips and fares by zone, of values that are JSON."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, IntegerType, LongType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
OUTPUTS = {
    "main": StructType(
        [StructField("zone", IntegerType()), StructField("trips", LongType()), StructField("cents", LongType())]
    )
}
TRIP = StructType([StructField("zone", IntegerType()), StructField("fare", DoubleType())])


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    trip = F.from_json(F.col("value").cast("string"), TRIP).alias("trip")
    cents = F.sum(F.round(F.col("trip.fare") * 100).cast("long"))
    return source.select(trip).groupBy("trip.zone").agg(F.count(F.lit(1)).alias("trips"), cents.alias("cents"))
