"""Assets of published tables: the gate's decisions as asset events, for DAGs that follow a table.

A task emits its asset events when it ends, and the gate's task does not. So the triggerer watches the gate's documents:
a decision becomes an event a few seconds after it was made, whoever made it: the DAG, the command line or a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import Decision, GateEvents
from streamwarden.quality.decision_facts import facts_of
from streamwarden.quality.gate_state import gate_document
from streamwarden.store.documents import Document
from streamwarden.store.layout import gate_events_key
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["DecisionTrigger", "published"]


def published(
    table: str, *, profile: str | None = None, config: str | None = None, root: str | None = None, poll: float = 5.0
) -> Asset:
    """Return the asset of a published table, for a DAG's `schedule`.

    Each decision of the gate about the table, published or held, is one asset event. Its ``extra["payload"]`` has what
    :func:`~streamwarden.quality.decision_facts.facts_of` returns: table, decision, version range, score, failed rules.

    Parameters
    ----------
    table
        The table's name.
    profile, config, root
        The place; default the triggerer's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    poll
        Seconds between two looks at the gate's document.
    """
    trigger = DecisionTrigger(table=table, profile=profile, config=config, root=root, poll=poll)
    return Asset(
        name=f"published/{table}",
        uri=f"streamwarden://published/{table}",
        group="streamwarden",
        watchers=[AssetWatcher(name=f"gate-{table}", trigger=trigger)],
    )


class DecisionTrigger(BaseEventTrigger):
    """Yields an event for each decision of the gate about a table.

    Begins with the decisions that are made from its first look on. What was yielded is noted in a document one look
    later. So after a restart of the triggerer, the decisions of its last look may come twice. None is left out, unless
    the gate has made more than 50 meanwhile.

    Parameters
    ----------
    table
        The table.
    profile, config, root, poll
        See :func:`published`.
    """

    def __init__(
        self,
        *,
        table: str,
        profile: str | None = None,
        config: str | None = None,
        root: str | None = None,
        poll: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.profile = profile
        self.config = config
        self.root = root
        self.poll = poll

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments that recreate this trigger."""
        names = ("table", "profile", "config", "root", "poll")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll for ever."""
        while True:
            try:
                workspace, new = await asyncio.to_thread(self._new)
                for one in new:
                    facts = await asyncio.to_thread(facts_of, workspace, self.table, one)
                    yield TriggerEvent(facts)  # type: ignore[no-untyped-call]
                await asyncio.sleep(self.poll)
                if new:
                    await asyncio.to_thread(self._note, workspace, new[-1])
            except (StreamwardenError, OSError) as error:
                # A place that is away for a while is no reason to give up: a dead trigger is not started again soon.
                self.log.warning("%s: %s", self.table, error)
                await asyncio.sleep(self.poll)

    def _new(self) -> tuple[Workspace, list[Decision]]:
        """Return the decisions since the noted one, oldest first."""
        workspace = open_workspace(self.profile, config=Path(self.config) if self.config else None, root=self.root)
        record = gate_document(workspace, self.table).read()
        decisions = record.decisions if record is not None else []
        noted = _events(workspace, self.table).read()
        if noted is None:
            # The first look: earlier decisions are history.
            _events(workspace, self.table).write(GateEvents(through=decisions[-1].at if decisions else None))
            return workspace, []
        # By its place in the list: the next may have been made on a machine whose clock is behind.
        places = [place for place, one in enumerate(decisions) if one.at == noted.through]
        if places:
            return workspace, decisions[places[-1] + 1 :]
        return workspace, [one for one in decisions if noted.through is None or one.at > noted.through]

    def _note(self, workspace: Workspace, last: Decision) -> None:
        _events(workspace, self.table).write(GateEvents(through=last.at))


def _events(workspace: Workspace, table: str) -> Document[GateEvents]:
    return Document(workspace.storage, gate_events_key(table), GateEvents)
