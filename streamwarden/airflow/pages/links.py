"""The addresses of pages, and of Airflow's own pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from streamwarden.airflow.describe import dag_id_of

__all__ = ["PREFIX", "VIEW", "Links", "page_address"]

PREFIX = "/streamwarden"
"""Where the pages are on the API server, below its base URL."""

VIEW = "streams"
"""The pages' name in the addresses of Airflow's UI: ``/plugin/streams``."""


def _joined(base: str, parts: tuple[Any, ...], query: dict[str, Any]) -> str:
    path = "/".join([base, *(quote(str(part), safe="") for part in parts)])
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


@dataclass(frozen=True)
class Links:
    """Addresses as paths of the API server.

    Parameters
    ----------
    base
        The path of our application, with the prefix of Airflow's base URL.
    """

    base: str

    def page(self, *parts: Any, **query: Any) -> str:
        """Return the path of a page; an empty query value is left out."""
        return _joined(self.base, parts, query)

    def airflow(self, *parts: Any, **query: Any) -> str:
        """Return the path of a page of Airflow's."""
        return _joined(self.base.removesuffix(PREFIX), parts, query)

    def dag(self, job: str) -> str:
        """Return the path of a job's DAG in Airflow."""
        return self.airflow("dags", dag_id_of(job))


def page_address(base_url: str, *parts: str) -> str:
    """Return the address of a page inside Airflow's UI, such as that of ``streams`` and a job.

    Parameters
    ----------
    base_url
        Airflow's, as ``[api] base_url``.
    """
    base = base_url.rstrip("/")
    path = base.split("://", 1)[-1].partition("/")[2]
    # The UI's address of a page ends with the page's own path.
    inner = f"/{path}{PREFIX}" if path else PREFIX
    return _joined(f"{base}/plugin/{VIEW}{inner}", parts, {})
