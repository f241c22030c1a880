"""Which of Airflow's components live and do nothing: what a liveness probe is for."""

from __future__ import annotations

from collections.abc import Collection

HUNG_S = 90.0
"""How long a component may be unwell before it is ended. Airflow says so 30 s after its last heartbeat; its start takes
up to 60 s on two cores on which three Sparks start. Its Helm chart waits for five minutes."""


class Liveness:
    """Tells since when a component that lives has been unwell without a break."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def hung(self, unwell: Collection[str], alive: Collection[str], now: float) -> list[str]:
        """Take a look; return what has been unwell for too long. Of what is returned the time begins anew.

        Parameters
        ----------
        unwell
            Components that do not say that they are well.
        alive
            Components whose process lives, and that nobody holds.
        now
            Seconds, of any clock that only grows.
        """
        self._since = {name: self._since.get(name, now) for name in alive if name in unwell}
        found = sorted(name for name, since in self._since.items() if now - since >= HUNG_S)
        for name in found:
            del self._since[name]
        return found
