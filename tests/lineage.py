"""OpenLineage for tests: a receiver of events, and checks of them against the specification.

`SCHEMA` says in our words what the specification demands of the events that the gate sends, and refuses all else. The
specification's own files are no part of this repository: if ``openlineage/`` of STREAMWARDEN_TEST_DATA holds its
``OpenLineage.json`` and ``facets/``, events are also checked against those.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import jsonschema
from referencing import Registry, Resource

from tests.http_receiver import HttpReceiver

DATA = Path(os.environ.get("STREAMWARDEN_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SPECIFICATION = DATA / "openlineage"

_TEXT = {"type": "string", "minLength": 1}
_UUID = {"type": "string", "format": "uuid"}
_JOB = {"namespace": _TEXT, "name": _TEXT}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required, optional=None):
    known = {**required, **(optional or {})}
    return {"type": "object", "properties": known, "required": [*required], "additionalProperties": False}


def _facet(version, kind, required):
    address = f"https://openlineage.io/spec/facets/{version}/{kind}.json#/$defs/{kind}"
    return _object({"_producer": _TEXT, "_schemaURL": {"const": address}, **required})


def _run_and_job(optional=None):
    parts = {"run": _object({"runId": _UUID}, {"facets": {"const": {}}})}
    parts["job"] = _object(_JOB, {"facets": {"const": {}}})
    return {**parts, **(optional or {})}


_PARENT = _facet("1-2-0", "ParentRunFacet", _run_and_job({"root": _object(_run_and_job())}))
_ASSERTION = _object(
    {"assertion": _TEXT, "success": {"type": "boolean"}},
    {
        **dict.fromkeys(("column", "name", "description", "actual"), _TEXT),
        "severity": {"enum": ["error", "warn", "info"]},
        "params": {"type": "object"},
    },
)
_TAGS = {"type": "array", "items": _object(dict.fromkeys(("key", "value", "source"), _TEXT))}
_VERSION = _object({}, {"version": _facet("1-0-1", "DatasetVersionDatasetFacet", {"datasetVersion": _TEXT})})
_DATASET = {"namespace": _TEXT, "name": _TEXT, "facets": _VERSION}
_CHECKED = {
    "dataQualityAssertions": _facet(
        "1-1-0", "DataQualityAssertionsDatasetFacet", {"assertions": {"type": "array", "items": _ASSERTION}}
    ),
    "dataQualityMetrics": _facet(
        "1-0-3", "DataQualityMetricsInputDatasetFacet", {"rowCount": _COUNT, "columnMetrics": {"type": "object"}}
    ),
}
_RUN_FACETS = {
    "parent": _PARENT,
    "tags": _facet("1-0-0", "TagsRunFacet", {"tags": _TAGS}),
    "errorMessage": _facet("1-0-1", "ErrorMessageRunFacet", {"message": _TEXT, "programmingLanguage": _TEXT}),
}
_JOB_TYPE = _facet(
    "2-0-4",
    "JobTypeJobFacet",
    {"processingType": {"enum": ["BATCH", "SERVICE"]}, "integration": _TEXT, "jobType": _TEXT},
)
SCHEMA = _object(
    {
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": {"type": "string", "pattern": "^urn:streamwarden:"},
        "schemaURL": {"const": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL"]},
        "run": _object({"runId": _UUID, "facets": _object({}, _RUN_FACETS)}),
        "job": _object({**_JOB, "facets": _object({"jobType": _JOB_TYPE})}),
        "inputs": {"type": "array", "items": _object({**_DATASET, "inputFacets": _object({}, _CHECKED)})},
        "outputs": {"type": "array", "items": _object({**_DATASET, "outputFacets": {"const": {}}})},
    }
)


class LineageReceiver(HttpReceiver):
    """Takes events as a lineage service does."""

    @property
    def events(self):
        return [json.loads(body) for body in self.bodies]

    def of(self, job):
        return [event for event in self.events if event["job"]["name"] == job]


@contextmanager
def configured(receiver, **environment):
    """Configure the client for a receiver. The client writes variables of its own, which are undone too."""
    with patch.dict(os.environ, {"OPENLINEAGE_URL": receiver.endpoint, **environment}):
        yield


def kinds(events):
    return [event["eventType"] for event in events]


def check(event):
    """Raise if an event is not what the specification demands."""
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(SCHEMA, format_checker=formats).validate(event)
    if SPECIFICATION.is_dir():
        for part in [event, *_facets(event)]:
            address = part.get("_schemaURL") or part["schemaURL"]
            validator = jsonschema.Draft202012Validator({"$ref": address}, registry=_specification())
            validator.validate(part)


def _facets(event):
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    return [
        facet
        for one in holders
        for key in ("facets", "inputFacets", "outputFacets")
        for facet in one.get(key, {}).values()
    ]


@cache
def _specification():
    found = [json.loads(path.read_text()) for path in SPECIFICATION.rglob("*.json")]
    return Registry().with_resources([(one["$id"], Resource.from_contents(one)) for one in found])
