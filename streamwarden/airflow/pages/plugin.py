"""The registration of the pages with Airflow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from streamwarden.airflow.pages.links import PREFIX, VIEW

__all__ = ["StreamwardenPlugin"]

_Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class _Pages:
    """The pages' application, built by the first request: other processes of Airflow load the plugin, too."""

    def __init__(self) -> None:
        self._app: _Asgi | None = None
        self._lock = threading.Lock()

    def _built(self) -> _Asgi:
        with self._lock:
            app = self._app
            if app is None:
                from streamwarden.airflow.pages.app import build_app

                app = self._app = build_app()
            return app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # In a thread: the imports take seconds, in which the server answers others.
        app = self._app if self._app is not None else await asyncio.to_thread(self._built)
        await app(scope, receive, send)


def _view(name: str, href: str, route: str, **more: str) -> dict[str, str]:
    # Without a leading slash: Airflow's UI resolves it against its base URL.
    return {"name": name, "href": f"{PREFIX.strip('/')}/{href}", "url_route": route, **more}


class StreamwardenPlugin(AirflowPlugin):
    """Adds the pages to the navigation, to each DAG and to each run."""

    name = "streamwarden"
    fastapi_apps: list[Any] = [  # noqa: RUF012
        {"app": _Pages(), "url_prefix": PREFIX, "name": "Streamwarden"}
    ]
    external_views: list[Any] = [  # noqa: RUF012
        _view("Streams", "streams", VIEW, destination="nav"),
        _view("Stream", "dag/{DAG_ID}", "stream", destination="dag"),
        _view("Operation", "dag/{DAG_ID}/run/{RUN_ID}", "operation", destination="dag_run"),
    ]
