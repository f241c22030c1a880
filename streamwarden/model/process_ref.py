"""The identity of a process, also after its end."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["ProcessRef"]


class ProcessRef(BaseModel):
    """A process of one machine, unambiguous even if its process id is reused.

    Parameters
    ----------
    host
        Host name; a container has its own.
    boot
        The kernel's boot id, or an empty string where it has none.
    pid
        Process id.
    namespace
        The PID namespace, as Linux names it; empty if there is none, and in older records. Two containers may share
        host name and boot id (host network of Docker and Kubernetes) while each has its own process 1.
    started
        Start time in seconds after the boot: unlike a time of day, it does not change when the clock is set.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    boot: str
    pid: int
    started: float
    namespace: str = ""
