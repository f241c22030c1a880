"""Landed files for tests: described as the driver's source describes them."""

from __future__ import annotations

from pathlib import Path

from streamwarden.landing.file import LandedFile

__all__ = ["describe"]


def describe(path: Path, folder: Path | None = None) -> LandedFile:
    """Describe a file as it is now; `folder` is the landing folder, by default the file's own."""
    folder = folder or path.parent
    found = path.stat()
    return LandedFile(
        name=path.relative_to(folder).as_posix(),
        folder=str(folder),
        length=found.st_size,
        modified_ms=found.st_mtime_ns // 1_000_000,
    )
