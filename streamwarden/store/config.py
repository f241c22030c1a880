"""Load configuration from YAML into validated models. Every error names file and field."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.model.alerts import AlertSpec
from streamwarden.model.profile import Profile
from streamwarden.model.spec import JobSpec
from streamwarden.names import is_part
from streamwarden.redaction import has_login, is_secret_name
from streamwarden.store.row_rules import suites_folder, with_row_rules
from streamwarden.store.value_schemas import check_schema_files

__all__ = ["config_dir", "describe_validation", "job_names", "load_alerts", "load_job", "load_profile"]

M = TypeVar("M", bound=BaseModel)

_TAGS = ("files", "delta", "kafka", "json", "avro", "protobuf")

CONFIG_ENV = "STREAMWARDEN_CONFIG"
_DEEPEST = 50
"""Brackets within brackets. A spec has three."""


def config_dir() -> Path:
    """Return the configuration folder: ``STREAMWARDEN_CONFIG``, else ``config/`` of the checkout."""
    given = os.environ.get(CONFIG_ENV)
    return Path(given).resolve() if given else Path(__file__).resolve().parents[2] / "config"


def job_names(config: Path | None = None) -> list[str]:
    """Return the names of the configured jobs, sorted. Reads file names only, to keep DAG parsing fast."""
    return sorted(path.stem for path in ((config or config_dir()) / "jobs").glob("*.yaml"))


def load_job(name: str, *, config: Path | None = None, profile: Profile | None = None) -> JobSpec:
    """Load and check ``jobs/NAME.yaml``.

    Parameters
    ----------
    name
        The job's name, which is also the file's stem.
    config
        The configuration folder; default :func:`config_dir`.
    profile
        If given, its overrides replace values of the job.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN``, or ``CONFIG_INVALID`` or ``SUITE_INVALID`` with file and field.
    """
    folder = config or config_dir()
    path = folder / "jobs" / f"{name}.yaml"
    # Looked up, unless it can be a part of a path and nothing else.
    if not (is_part(name) or name in job_names(folder)) or not path.is_file():
        known = ", ".join(job_names(folder)) or "none"
        raise StreamwardenError("JOB_UNKNOWN", f"{name!r} in {folder / 'jobs'} (configured: {known})")
    raw = _read(path)
    spec = _validate(JobSpec, raw, path)
    if spec.name != path.stem:
        raise StreamwardenError("CONFIG_INVALID", f"{path}: name: is {spec.name!r}, but the file is {path.name}")
    if any(sink.row_rules for sink in spec.delta_sinks):
        raise StreamwardenError("CONFIG_INVALID", f"{path}: sinks: row_rules belong in the table's suite")
    _refuse_secrets(spec.spark, path)
    try:
        check_schema_files(folder, spec)
    except StreamwardenError as error:
        raise StreamwardenError(error.code, f"{path}: {error.what}") from None
    if profile is not None:
        spec = _validate(JobSpec, _overridden(spec, profile), path)
    return with_row_rules(spec, suites_folder(folder))


def load_profile(name: str, *, config: Path | None = None) -> Profile:
    """Load and check ``profiles/NAME.yaml``. An unchanged file is not read again.

    Raises
    ------
    StreamwardenError
        ``CONFIG_NOT_FOUND``, or ``CONFIG_INVALID`` with file and field.
    """
    path = (config or config_dir()) / "profiles" / f"{name}.yaml"
    if not is_part(name) or not path.is_file():
        raise StreamwardenError("CONFIG_NOT_FOUND", f"profile {name!r}: {path}")
    found = path.stat()
    return _profile(path, found.st_ino, found.st_mtime_ns, found.st_size)


# A supervisor opens its workspace in every check; YAML parsing would take half of that time.
@lru_cache(maxsize=16)
def _profile(path: Path, *_version: int) -> Profile:
    profile = _validate(Profile, _read(path), path)
    _refuse_secrets(profile.spark, path)
    if profile.name != path.stem:
        raise StreamwardenError("CONFIG_INVALID", f"{path}: name: is {profile.name!r}, but the file is {path.name}")
    return profile


def load_alerts(config: Path | None = None) -> AlertSpec:
    """Load and check ``alerts.yaml``. Without that file, no notifications are sent.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` with file and field.
    """
    path = (config or config_dir()) / "alerts.yaml"
    return _validate(AlertSpec, _read(path) or {}, path) if path.is_file() else AlertSpec()


def describe_validation(error: ValidationError) -> str:
    """Return pydantic's findings as ``field.path: message``, joined by semicolons, without input values."""
    parts, found = [], error.errors(include_url=False, include_context=False)
    for item in found:
        place = item["loc"]
        if item["type"] == "too_short" and any(one["loc"][: len(place)] == place != one["loc"] for one in found):
            # A list counts only its valid items: the fault of an item would be reported twice.
            continue
        # Discriminated unions add their tag to the path, but the file has no such field.
        field = ".".join(str(step) for step in place if step not in _TAGS)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        parts.append(f"{field}: {message}" if field else message)
    return "; ".join(parts)


class _UniqueKeys(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys; PyYAML silently uses the last value."""

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        # PyYAML's time grows with the square of the depth: a thousand brackets take ten seconds.
        if self.flow_level > _DEEPEST:
            raise yaml.scanner.ScannerError(None, None, "brackets are nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(kind)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _overridden(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    raw = spec.model_dump(mode="json", exclude_unset=True)
    over = profile.jobs
    if over.interval is not None:
        raw.setdefault("trigger", {})["interval"] = over.interval
    if over.partitions is not None:
        raw.setdefault("state", {})["partitions"] = over.partitions
    if over.resources is not None:
        raw["resources"] = over.resources.model_dump(mode="json")
    if spec.name in over.options:
        raw["options"] = {**raw.get("options", {}), **over.options[spec.name]}
    return raw


def _refuse_secrets(settings: Mapping[str, str], path: Path) -> None:
    """Raise for a setting with a secret: documents and pages would show it, and so would the JVM's command line."""
    for name, value in settings.items():
        if is_secret_name(name) or has_login(value):
            what = (
                f"{path}: spark.{name}: a secret belongs in the environment of the driver, or in a file that it names"
            )
            raise StreamwardenError("CONFIG_INVALID", what)


def _read(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # Without the cause: a traceback would show the line, and so would the error's message. It may hold a secret.
        raise StreamwardenError("CONFIG_INVALID", f"{path}: not YAML: {_slip(error)}") from None
    except (ValueError, TypeError, RecursionError) as error:
        # A day that does not exist, a list as a key, or a thousand brackets. Without its text: it has the value.
        what = f"{path}: not YAML that can be read: {type(error).__name__}"
        raise StreamwardenError("CONFIG_INVALID", what) from None


def _slip(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """Describe the error and its position without the file's text."""
    if isinstance(error, UnicodeDecodeError):
        return f"{error.reason} at byte {error.start}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} at character {error.position}"
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", None) or type(error).__name__)
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    # A character or a duplicate key reveals no secret; an invalid alias or tag may be a password.
    if r"'\t'" in problem:
        problem = "a tab, where YAML is indented by spaces"
    words = problem if "there twice" in problem else re.sub(r"'[^']{2,}'", "'…'", problem)
    return f"{words}{where}"


def _validate(model: type[M], raw: Any, path: Path) -> M:
    if not isinstance(raw, dict):
        raise StreamwardenError("CONFIG_INVALID", f"{path}: must be a mapping of fields")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise StreamwardenError("CONFIG_INVALID", f"{path}: {describe_validation(error)}") from error
