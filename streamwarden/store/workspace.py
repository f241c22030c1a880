"""A workspace: configuration, documents, tables, checkpoints and logs of one profile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.model.profile import ENDPOINT, Profile, S3Spec
from streamwarden.model.spec import JobSpec
from streamwarden.storage import FileStore, LocalFiles, LocalStorage, S3Location, Storage
from streamwarden.store.config import config_dir, load_job, load_profile
from streamwarden.store.layout import LOGS, SCRATCH, TABLES, job_key, published_key, serving_key, table_key
from streamwarden.store.root import checked_root

__all__ = ["Workspace", "open_workspace"]

PROFILE_ENV = "STREAMWARDEN_PROFILE"
ROOT_ENV = "STREAMWARDEN_ROOT"


@dataclass(frozen=True)
class Workspace:
    """An opened workspace.

    Parameters
    ----------
    config
        The configuration folder.
    profile
        The profile in force.
    root
        Local folder of ``landing/ logs/ quality/ scratch/``, and of everything else if there is no bucket.
    storage
        Control documents.
    files
        Checkpoints and savepoints, under the same root as the documents.
    base
        The same root as Spark writes it: a folder, or ``s3a://bucket/prefix``.
    s3
        The location on S3, or None on disk.
    """

    config: Path
    profile: Profile
    root: Path
    storage: Storage
    files: FileStore
    base: str
    s3: S3Location | None = None

    @property
    def tables(self) -> str:
        """The folder of the Delta tables, as a path for Spark."""
        return self.uri(TABLES)

    def table(self, name: str, *, published: bool = False) -> str:
        """Return the folder of one Delta table, or of its published versions, as a path for Spark."""
        return self.uri(published_key(name) if published else table_key(name))

    def uri(self, key: str) -> str:
        """Return a key of `files` or `storage` as a path for Spark."""
        return f"{self.base}/{key}"

    def schemed_uri(self, key: str) -> str:
        """Return :meth:`uri` with its scheme, as Spark writes paths in its own files."""
        uri = self.uri(key)
        return uri if "://" in uri else f"file:{uri}"

    def delta_rs(self, name: str, *, published: bool = False) -> tuple[str, dict[str, str] | None]:
        """Return the address of a Delta table, or of its published versions, and storage options for delta-rs.

        Without credentials: delta-rs reads them from the environment, as AWS_ACCESS_KEY_ID.
        """
        if self.s3 is None:
            return self.table(name, published=published), None
        options = {"AWS_REGION": self.s3.region}
        if self.s3.endpoint is not None:
            plain = str(self.s3.endpoint.startswith("http:")).lower()
            options |= {"AWS_ENDPOINT_URL": self.s3.endpoint, "AWS_ALLOW_HTTP": plain}
        if published:
            # The log names the table's files by Spark's scheme, and delta-rs knows only the one it was opened with.
            return self.table(name, published=True), options
        return f"{self.s3.uri('s3')}/{table_key(name)}", options

    def source_path(self, path: str) -> str:
        """Return a file source's folder as a path for Spark; relative paths start at the root."""
        return path if "://" in path else str(self.root / path)

    def log_dir(self, job: str, incarnation: str) -> Path:
        """Return the folder of one incarnation's log files."""
        return self.root / job_key(LOGS, job, incarnation)

    def serving_file(self, table: str) -> Path:
        """Return the SQLite file of a table's serving store, on this machine."""
        return self.root / serving_key(table)

    @property
    def scratch(self) -> Path:
        """Local folder for temporary files of running drivers; see :mod:`streamwarden.runtime.work_dirs`."""
        return self.root / SCRATCH

    def scratch_dir(self, job: str, incarnation: str) -> Path:
        """Return the scratch folder of one driver process."""
        return self.root / job_key(SCRATCH, job, incarnation)

    def job(self, name: str) -> JobSpec:
        """Load a job's spec with this profile's overrides; see :func:`~streamwarden.store.config.load_job`."""
        return load_job(name, config=self.config, profile=self.profile)


def open_workspace(
    profile: str | None = None, *, config: Path | None = None, root: Path | str | None = None
) -> Workspace:
    """Open a workspace. Contacts no server: errors of a bucket appear at the first document.

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
        ``CONFIG_NOT_FOUND`` or ``CONFIG_INVALID``; ``EXTRA_MISSING`` if the profile has S3 and boto3 is not installed.
    """
    folder = (config or config_dir()).resolve()
    loaded = load_profile(profile or os.environ.get(PROFILE_ENV) or "local", config=folder)
    chosen = Path(root or os.environ.get(ROOT_ENV) or loaded.root)
    resolved = checked_root(chosen if chosen.is_absolute() else (folder.parent / chosen).resolve(), loaded.name)
    if loaded.s3 is not None:
        from streamwarden.storage import S3Files, S3Storage

        location = _location(loaded.s3)
        return Workspace(
            config=folder,
            profile=loaded,
            root=resolved,
            storage=S3Storage(location),
            files=S3Files(location),
            base=location.uri("s3a"),
            s3=location,
        )
    return Workspace(
        config=folder,
        profile=loaded,
        root=resolved,
        storage=LocalStorage(resolved),
        files=LocalFiles(resolved),
        base=str(resolved),
    )


def _location(spec: S3Spec) -> S3Location:
    """Complete the profile's location from the environment, by the variables of Amazon's tools."""
    environment = os.environ.get
    endpoint = spec.endpoint or environment("AWS_ENDPOINT_URL_S3") or environment("AWS_ENDPOINT_URL") or None
    if endpoint is not None and not ENDPOINT.fullmatch(endpoint):
        # Not shown: it may have a login, which Spark would show among its settings.
        raise StreamwardenError("CONFIG_INVALID", "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is no http(s)://HOST:PORT")
    return S3Location(
        bucket=spec.bucket,
        prefix=spec.prefix,
        endpoint=endpoint,
        region=spec.region or environment("AWS_REGION") or environment("AWS_DEFAULT_REGION") or "us-east-1",
    )
