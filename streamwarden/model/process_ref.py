"""The identity of a process, also after it has ended."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["ProcessRef"]


class ProcessRef(BaseModel):
    """A process of one machine, in a way that survives the reuse of process ids.

    Parameters
    ----------
    host
        Host name; a container has its own.
    boot
        The kernel's boot id, or an empty string where it has none.
    pid
        Process id.
    namespace
        The PID namespace, as Linux names it; empty where there is none, and in older records. Two containers may share
        host name and boot id (Docker's and Kubernetes' host network), and each has a process 1 of its own.
    started
        Start time, seconds after the boot: unlike a time of day it does not change when the clock is set.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    boot: str
    pid: int
    started: float
    namespace: str = ""
