"""``python -m streamwarden.driver.state_view``: answer one question about a job's state, as a JSON line.

Called by :mod:`streamwarden.operations.state_view`, which explains questions and answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from streamwarden.driver.causes import headline
from streamwarden.driver.job_session import checkpoint_session
from streamwarden.driver.pipeline.module import load_module
from streamwarden.driver.pipeline.source import job_rows
from streamwarden.driver.state_entries import state_entries
from streamwarden.driver.state_rows import plain_path
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.dataframe import layouts_of_queries
from streamwarden.keyed_state.layout import StateLayout
from streamwarden.model.spec import JobSpec
from streamwarden.runtime import work_dirs
from streamwarden.runtime.state_reader import SCRATCH
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace, open_workspace

_IDENTITY = ("operator", "variable", "key")


def main() -> int:
    """Answer the question and print the answer."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.driver.state_view")
    for name in ("profile", "config", "root", "spec", "question"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    spec = JobSpec.model_validate_json(given.spec)
    work_dirs.sweep(workspace, SCRATCH)
    own = work_dirs.claim(workspace, SCRATCH, new_id())
    os.environ["TMPDIR"] = str(own)
    try:
        session = checkpoint_session(workspace, spec, own)
        session.sparkContext.setLogLevel("ERROR")
        try:
            answer = _View(session, workspace, spec).answer(json.loads(given.question))
        except StreamwardenError as error:
            answer = {"code": error.code, "error": error.what}
        except Exception as error:
            # Any exception: the caller reports it as unreadable state.
            answer = {"code": "STATE_UNREADABLE", "error": f"{spec.name}: {headline(error)}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        session.stop()
    finally:
        work_dirs.remove(own)
    return 0


class _View:
    def __init__(self, session: SparkSession, workspace: Workspace, spec: JobSpec) -> None:
        self._session = session
        self._workspace = workspace
        self._spec = spec

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        with plain_path(self._workspace.uri(question["at"][0])) as path:
            entries = self._entries(path, question["at"][1])
            match question["do"]:
                case "show":
                    return self._show(entries, question["key"], question["limit"])
                case "stats":
                    return self._stats(entries.persist(), question["limit"])
                case "export":
                    return self._export(entries, question["table"])
                case _:
                    with plain_path(self._workspace.uri(question["with"][0])) as other:
                        return self._diff(entries, self._entries(other, question["with"][1]), question["limit"])

    def _entries(self, path: str, batch: int) -> DataFrame:
        return state_entries(self._session, path, batch, self._layouts)

    def _layouts(self) -> Sequence[StateLayout]:
        with layouts_of_queries() as found:
            job_rows(self._session, self._workspace, self._spec, load_module(self._spec))
        return found

    def _show(self, entries: DataFrame, key: str | None, limit: int) -> dict[str, Any]:
        chosen = entries if key is None else entries.where(_has(key))
        found = chosen.orderBy("operator", "variable", "key", "value").limit(limit + 1).collect()
        return {"entries": [_plain(row.asDict()) for row in found[:limit]], "more": len(found) > limit}

    def _stats(self, entries: DataFrame, limit: int) -> dict[str, Any]:
        size = F.sum(F.length("key") + F.coalesce(F.length("value"), F.lit(0))).alias("json_bytes")
        counts = [F.count(F.lit(1)).alias("entries"), F.count_distinct("key").alias("keys"), size]
        by = ["operator", "variable", "partition"]
        ages = [F.min("expires_at").alias("first_expiry"), F.max("expires_at").alias("last_expiry")]
        ages += [F.min("timer_at").alias("first_timer"), F.max("timer_at").alias("last_timer")]
        partitions = entries.groupBy(*by).agg(*counts).orderBy(*by).collect()
        variables = entries.groupBy(*by[:2]).agg(*counts, *ages).orderBy(*by[:2]).collect()
        heaviest = entries.groupBy("operator", "key").agg(counts[0], size)
        heavy = heaviest.orderBy(F.desc("json_bytes"), "key").limit(limit).collect()
        return {
            "variables": [_plain(row.asDict()) for row in variables],
            "partitions": [_plain(row.asDict()) for row in partitions],
            "heaviest": [_plain(row.asDict()) for row in heavy],
        }

    def _export(self, entries: DataFrame, table: str) -> dict[str, Any]:
        # Fails if the table exists: a state is not to be mixed with another.
        entries.write.format("delta").mode("errorifexists").save(self._workspace.table(table))
        return {"rows": self._session.read.format("delta").load(self._workspace.table(table)).count()}

    def _diff(self, before: DataFrame, after: DataFrame, limit: int) -> dict[str, Any]:
        a, b = (_counted(one).persist() for one in (before, after))
        # Equal entries first: of a list or map, a removed one must not move all others.
        equal = [*_IDENTITY, "value", "nth"]
        a, b = _paired(_without(a, b, equal)).alias("a"), _paired(_without(b, a, equal)).alias("b")
        same = [F.col(f"a.{name}").eqNullSafe(F.col(f"b.{name}")) for name in (*_IDENTITY, "nth")]
        changed = (
            a.join(b, same, "full")
            .select(
                *[F.coalesce(f"a.{name}", f"b.{name}").alias(name) for name in _IDENTITY],
                F.col("a.value").alias("before"),
                F.col("b.value").alias("after"),
                F.when(F.col("a.operator").isNull(), "added")
                .when(F.col("b.operator").isNull(), "removed")
                .otherwise("changed")
                .alias("change"),
            )
            .persist()
        )
        counts = {row.change: row["count"] for row in changed.groupBy("change").count().collect()}
        shown = changed.orderBy(*_IDENTITY).limit(limit).collect()
        return {
            "added": counts.get("added", 0),
            "removed": counts.get("removed", 0),
            "changed": counts.get("changed", 0),
            "examples": [row.asDict() for row in shown],
        }


def _counted(entries: DataFrame) -> DataFrame:
    """Number the equal entries of a key."""
    equal = Window.partitionBy(*_IDENTITY, "value").orderBy("partition")
    # Moves of keys between partitions are no change.
    return entries.withColumn("nth", F.row_number().over(equal)).select(*_IDENTITY, "value", "nth")


def _without(rows: DataFrame, others: DataFrame, columns: Sequence[str]) -> DataFrame:
    a, b = rows.alias("rows"), others.alias("others")
    same = [F.col(f"rows.{name}").eqNullSafe(F.col(f"others.{name}")) for name in columns]
    return a.join(b, same, "left_anti")


def _paired(rows: DataFrame) -> DataFrame:
    """Number the entries of a key by their values, so that each has at most one counterpart."""
    return rows.withColumn("nth", F.row_number().over(Window.partitionBy(*_IDENTITY).orderBy("value")))


def _has(key: str) -> Column:
    name, is_named, value = key.partition("=")
    if is_named:
        return F.get_json_object("key", f"$['{name}']") == value
    return F.array_contains(F.map_values(F.from_json("key", "map<string,string>")), key)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}


if __name__ == "__main__":
    sys.exit(main())
