"""The row rules of a job's tables, read from the suites beside the configuration, and put into the job's spec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.model.row_rules import RowRule, compile_rule, quarantine_of
from streamwarden.model.spec import RULES_OUTPUT, JobSpec, SinkSpec

__all__ = ["compiled", "suites_folder", "with_kept_quarantine", "with_row_rules"]

QUARANTINE = "quarantine"
"""The value of an expectation's ``meta.rows``."""


def suites_folder(config: Path) -> Path:
    """Return the folder of suites: ``expectations/`` beside the configuration folder."""
    return config.parent / "expectations"


def with_row_rules(spec: JobSpec, folder: Path) -> JobSpec:
    """Return a spec with the rules of its tables, and a sink for each quarantine table that is not yet a sink.

    Parameters
    ----------
    folder
        The folder of suites. A table without a suite has no rules.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``, with file and field.
    """
    sinks, added = [], []
    tables = {sink.table: sink for sink in spec.delta_sinks}
    for sink in spec.sinks:
        path = folder / f"{sink.table}.json" if isinstance(sink, SinkSpec) else None
        rules = _rules(path) if path is not None and path.is_file() else ()
        if not rules or not isinstance(sink, SinkSpec):
            sinks.append(sink)
            continue
        sinks.append(sink.model_copy(update={"row_rules": rules}))
        name = quarantine_of(sink.table)
        own = tables.get(name)
        if own is None:
            added.append(_quarantine_sink(path, name, sink.output))
        elif own.mode != "append":
            raise StreamwardenError("SUITE_INVALID", f"{path}: meta.rows: {name} is upserted, so it can't take rows")
    return spec.model_copy(update={"sinks": (*sinks, *added)}) if added or tuple(sinks) != spec.sinks else spec


def with_kept_quarantine(spec: JobSpec, deployed: JobSpec) -> JobSpec:
    """Return a spec that keeps the quarantine tables of a deployed spec whose last rule was removed since.

    So savepoints and restores go on to include them: their rows are still corrected and replayed.
    """
    tables = {sink.table for sink in spec.delta_sinks}
    judged = {quarantine_of(table) for table in tables}
    outputs = {sink.output for sink in spec.delta_sinks}
    kept = [
        sink
        for sink in deployed.delta_sinks
        if sink.output.startswith(RULES_OUTPUT)
        and sink.output not in outputs
        and sink.table in judged
        and sink.table not in tables
    ]
    return spec.model_copy(update={"sinks": (*spec.sinks, *kept)}) if kept else spec


def compiled(kind: str, arguments: Mapping[str, Any], meta: Mapping[str, Any], reason: str) -> RowRule | None:
    """Compile an expectation of a suite; None if it is no row rule.

    Raises
    ------
    ValueError
        If it can't be compiled. The message begins with the field.
    """
    rows = meta.get("rows")
    if rows is None:
        return None
    if rows != QUARANTINE:
        raise ValueError(f"meta.rows: {rows!r}: the only value is {QUARANTINE!r}")
    recent = bool(meta.get("recent") or meta.get("tables"))
    return compile_rule(kind, arguments, name=str(meta["id"]), reason=reason, recent=recent)


def _rules(path: Path) -> tuple[RowRule, ...]:
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StreamwardenError("SUITE_INVALID", f"{path}: not JSON: {error}") from error
    found: list[RowRule] = []
    if not isinstance(raw, dict):
        raise StreamwardenError("SUITE_INVALID", f"{path}: is no object")
    given = raw.get("expectations") or []
    if not isinstance(given, list):
        raise StreamwardenError("SUITE_INVALID", f"{path}: expectations: is no list")
    for number, one in enumerate(given):
        # All else about a suite is checked by its readers; a job needs its rules only.
        meta = one.get("meta") if isinstance(one, dict) else None
        if not isinstance(meta, dict) or meta.get("rows") is None:
            continue
        try:
            if not isinstance(meta.get("id"), str) or not meta["id"]:
                raise ValueError("meta.id: is missing")
            if any(rule.id == meta["id"] for rule in found):
                raise ValueError(f"meta.id: {meta['id']!r} is given twice")
            kind, arguments = str(one.get("type")), one.get("kwargs") or {}
            if not isinstance(arguments, dict):
                raise ValueError("kwargs: is no object")
            if not isinstance(one.get("description") or "", str):
                raise ValueError("description: is no text")
            rule = compiled(kind, arguments, meta, one.get("description") or f"{kind} {json.dumps(arguments)}")
        except ValueError as error:
            raise StreamwardenError("SUITE_INVALID", f"{path}: expectations.{number}.{error}") from error
        if rule is not None:
            found.append(rule)
    return tuple(found)


def _quarantine_sink(path: Path | None, name: str, output: str) -> SinkSpec:
    try:
        # By the judged output: a clone of the job has other tables.
        return SinkSpec(table=name, output=f"{RULES_OUTPUT}{output}", mode="append")
    except ValidationError as error:
        raise StreamwardenError("SUITE_INVALID", f"{path}: meta.rows: no table can be named {name}") from error
