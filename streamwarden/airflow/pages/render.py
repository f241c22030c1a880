"""Render a page: the template's text, with an ETag, and headers that allow nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streamwarden.airflow.pages import words
from streamwarden.airflow.pages.charts import Chart
from streamwarden.airflow.pages.events import Event
from streamwarden.airflow.pages.links import Links
from streamwarden.airflow.pages.streams import TONES

__all__ = ["DOCS_HEADERS", "HEADERS", "KEPT", "links_of", "page", "rows"]

HEADERS = {
    # The page's own files alone; nothing inline. Airflow's UI frames it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

DOCS_HEADERS = {
    **HEADERS,
    # Great Expectations' pages have styles in their elements. They need no script.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none';"
        " frame-ancestors 'self'"
    ),
}

KEPT = {"Cache-Control": "private, max-age=86400"}
"""For files that a browser may keep."""


def links_of(request: Request) -> Links:
    """Return the addresses as seen by a request's browser."""
    return Links(request.scope.get("root_path", "").rstrip("/"))


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page; 304 if the browser has the same one already."""
    links = links_of(request)
    text = (
        _environment()
        .get_template(template)
        .render(links=links, path=request.url.path, query=request.query_params, **values)
    )
    tag = f'"{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}"'
    headers = {**HEADERS, "ETag": tag, "Cache-Control": "private, no-cache"}
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(text, status, headers, "text/html; charset=utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("streamwarden.airflow.pages"),
        # Always on: names, messages and rows come from data.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: getattr(words, name) for name in words.__all__})
    environment.filters.update(data=_data, chart=Chart.as_json, mark=_mark)
    environment.globals.update(asset=_asset, tones=TONES)
    return environment


def rows(examples: Sequence[Mapping[str, Any]]) -> Markup:
    """Return failing rows as a table, with the columns of all of them."""
    names = list(dict.fromkeys(name for row in examples for name in row))
    return Markup(_environment().get_template("rows.html.j2").render(names=names, examples=examples))


def _mark(event: Event) -> dict[str, Any]:
    return {"at": event.at.timestamp(), "kind": event.kind}


def _asset(links: Links, name: str) -> str:
    """Return a file's address with its version, so that a browser may keep it."""
    return links.page("static", name, v=_version(name))


@cache
def _version(name: str) -> str:
    return hashlib.sha256((files(__package__) / "static" / name).read_bytes()).hexdigest()[:12]


def _data(value: Any) -> Markup:
    """Return a value as JSON for a script element, which no text in it can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
