"""Where everything of one place to run is: configuration, documents, tables, checkpoints, logs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from streamwarden.control.config import config_dir, load_job, load_profile
from streamwarden.control.profile import Profile
from streamwarden.control.spec import JobSpec
from streamwarden.storage import FileStore, LocalFiles, LocalStorage, Storage

__all__ = ["Workspace", "open_workspace"]

PROFILE_ENV = "STREAMWARDEN_PROFILE"
ROOT_ENV = "STREAMWARDEN_ROOT"


@dataclass(frozen=True)
class Workspace:
    """An opened place to run.

    Parameters
    ----------
    config
        The configuration folder.
    profile
        The profile in force.
    root
        The folder on this machine that holds ``landing/ logs/ quality/``, and everything else where no bucket does.
    storage
        Control documents.
    files
        Checkpoints and savepoints, under the same root as the documents.
    base
        That root as Spark writes it: a folder, or ``s3a://bucket/prefix``.
    """

    config: Path
    profile: Profile
    root: Path
    storage: Storage
    files: FileStore
    base: str

    @property
    def tables(self) -> str:
        """The folder of the Delta tables, as Spark reads it."""
        return self.uri("tables")

    def table(self, name: str) -> str:
        """Return the folder of one Delta table, as Spark reads it."""
        return self.uri(f"tables/{name}")

    def uri(self, key: str) -> str:
        """Return a key of `files` or `storage` as Spark reads it."""
        return f"{self.base}/{key}"

    def schemed_uri(self, key: str) -> str:
        """Return :meth:`uri` with its scheme, as Spark itself writes paths down."""
        uri = self.uri(key)
        return uri if "://" in uri else f"file:{uri}"

    def source_path(self, path: str) -> str:
        """Return a file source's folder as Spark reads it: relative ones count from the root."""
        return path if "://" in path else str(self.root / path)

    def log_dir(self, job: str, incarnation: str) -> Path:
        """Return the folder of one incarnation's log files."""
        return self.root / "logs" / job / incarnation

    def job(self, name: str) -> JobSpec:
        """Load a job's spec with this profile's overrides; see :func:`~streamwarden.control.config.load_job`."""
        return load_job(name, config=self.config, profile=self.profile)


def open_workspace(
    profile: str | None = None, *, config: Path | None = None, root: Path | str | None = None
) -> Workspace:
    """Open a place to run.

    Parameters
    ----------
    profile
        Name of a file in ``config/profiles``; default ``STREAMWARDEN_PROFILE``, else ``local``.
    config
        Configuration folder; default ``STREAMWARDEN_CONFIG``, else ``config/`` of the checkout.
    root
        Replaces the profile's root; default ``STREAMWARDEN_ROOT``, else the profile's.

    Raises
    ------
    StreamwardenError
        ``CONFIG_NOT_FOUND`` or ``CONFIG_INVALID``.
    """
    folder = (config or config_dir()).resolve()
    loaded = load_profile(profile or os.environ.get(PROFILE_ENV) or "local", config=folder)
    chosen = Path(root or os.environ.get(ROOT_ENV) or loaded.root)
    resolved = chosen if chosen.is_absolute() else (folder.parent / chosen).resolve()
    return Workspace(
        config=folder,
        profile=loaded,
        root=resolved,
        storage=LocalStorage(resolved),
        files=LocalFiles(resolved),
        base=str(resolved),
    )
