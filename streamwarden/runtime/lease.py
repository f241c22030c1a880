"""The lease: at most one driver runs a job."""

from __future__ import annotations

import threading
from datetime import timedelta

from streamwarden.errors import StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.status import Lease
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.processes import is_alive
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments

__all__ = ["LeaseHolder", "lease_is_live"]


def lease_is_live(lease: Lease) -> bool:
    """Return whether a process may still act under a lease.

    A lease is not live after it was released or has expired, or if its process was on this machine and is dead. So the
    successor of a killed driver does not wait for the expiry.
    """
    if lease.released or utc_now() >= lease.expires_at:
        return False
    jvm_gone = lease.jvm is None or is_alive(lease.jvm) is False
    return not (jvm_gone and is_alive(lease.process) is False)


class LeaseHolder:
    """Acquires and renews a job's lease.

    Thread-safe: a heartbeat thread renews, the batch thread checks.

    Parameters
    ----------
    documents
        The job's documents.
    incarnation
        The incarnation that acquires the lease.
    process
        The process that acts under the lease.
    ttl
        How long the lease lasts without renewal. Clocks of machines that share a root must agree to well within this.
    """

    def __init__(self, documents: JobDocuments, incarnation: str, process: ProcessRef, ttl: timedelta) -> None:
        self._documents = documents
        self._incarnation = incarnation
        self._process = process
        self._ttl = ttl
        self._lock = threading.Lock()
        self._held: tuple[Lease, str] | None = None

    def acquire(self, *, wait: timedelta = timedelta(0)) -> Lease:
        """Acquire the lease.

        Parameters
        ----------
        wait
            How long to wait for the expiry of a lease that is not renewed. A renewal ends the wait: its holder lives.

        Raises
        ------
        StreamwardenError
            ``LEASE_HELD``, naming the holder.
        """
        deadline = Deadline(wait.total_seconds())
        first_seen: int | None = None
        while True:
            found = self._documents.lease.read_versioned()
            if found is None or not lease_is_live(found[0]):
                try:
                    return self._take(found)
                except Conflict:
                    continue
            holder = found[0]
            renewed = first_seen is not None and holder.renewals != first_seen
            first_seen = holder.renewals if first_seen is None else first_seen
            if renewed or not deadline.pause(0.2):
                raise StreamwardenError(
                    "LEASE_HELD",
                    f"{self._documents.job}: incarnation {holder.incarnation} on {holder.process.host}"
                    f" (pid {holder.process.pid}), until {holder.expires_at:%H:%M:%S} UTC",
                )

    def renew(self, *, jvm: ProcessRef | None = None) -> None:
        """Renew the lease, and check that it is still held.

        Parameters
        ----------
        jvm
            If given, recorded as the JVM that also acts under the lease.

        Raises
        ------
        StreamwardenError
            ``LEASE_LOST`` if another incarnation acquired it.
        """
        with self._lock:
            if self._held is None:
                raise StreamwardenError("LEASE_LOST", f"{self._documents.job}: {self._incarnation} holds no lease")
            lease, etag = self._held
            update = {"renewals": lease.renewals + 1, "expires_at": utc_now() + self._ttl, "jvm": jvm or lease.jvm}
            prolonged = lease.model_copy(update=update)
            try:
                self._held = (prolonged, self._replace(prolonged, etag))
            except Conflict:
                self._held = None
                taker = self._documents.lease.read()
                by = f" to {taker.incarnation}" if taker else ""
                raise StreamwardenError(
                    "LEASE_LOST", f"{self._documents.job}: {self._incarnation} lost the lease{by}"
                ) from None

    def release(self) -> None:
        """Release the lease, if it is held. The document stays, because of its epoch."""
        with self._lock:
            if self._held is None:
                return
            lease, etag = self._held
            self._held = None
            try:
                self._replace(lease.model_copy(update={"released": True}), etag)
            except Conflict:
                return

    def _replace(self, lease: Lease, etag: str) -> str:
        """Replace the last known version of our lease, or a later version that is also ours."""
        try:
            return self._documents.lease.replace(lease, etag)
        except Conflict:
            found = self._documents.lease.read_versioned()
            if found is None or (found[0].incarnation, found[0].epoch) != (lease.incarnation, lease.epoch):
                raise
            # An earlier renewal succeeded, but its answer was lost with the connection: only we write this epoch.
            return self._documents.lease.replace(lease, found[1])

    def _take(self, found: tuple[Lease, str] | None) -> Lease:
        now = utc_now()
        lease = Lease(
            job=self._documents.job,
            incarnation=self._incarnation,
            process=self._process,
            epoch=found[0].epoch + 1 if found else 1,
            acquired_at=now,
            expires_at=now + self._ttl,
        )
        document = self._documents.lease
        etag = document.replace(lease, found[1]) if found else document.create(lease)
        with self._lock:
            self._held = (lease, etag)
        return lease
