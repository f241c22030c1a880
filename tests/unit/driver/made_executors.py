"""A session's executors, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class MadeExecutors:
    """Executors of which one more comes with each look, up to a number; the first is the driver's own entry."""

    def __init__(self, master: str, come: int, **settings: str) -> None:
        self.looks, self.come = 0, come
        context = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: self))
        conf = SimpleNamespace(get=lambda name, default: settings.get(name.replace(".", "_"), default))
        self.session: Any = SimpleNamespace(
            sparkContext=SimpleNamespace(master=master, _jsc=context, getConf=lambda: conf)
        )

    def size(self) -> int:
        self.looks += 1
        return min(self.looks, 1 + self.come)
