"""Write ``docs/configuration.md`` from the models that check the YAML files. A test checks that it is up to date."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from streamwarden.driver import schema_registry
from streamwarden.model.alerts import AlertSpec
from streamwarden.model.durations import format_duration
from streamwarden.model.profile import Profile

# Not public, since no other program needs it; a person who writes a job does.
from streamwarden.model.spec import _OWNED_SETTINGS, JobSpec
from streamwarden.runtime import spares
from streamwarden.runtime.launchers import local
from streamwarden.spark import jars
from streamwarden.store import config, workspace

TARGET = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

_HEAD = """\
# Configuration

<!-- Made by scripts/make_configuration_md.py from the models in streamwarden/model: change it there. -->

`config/jobs/NAME.yaml` describes a job, `config/profiles/NAME.yaml` a place to run; `name` in a file is the file's
name. `config/alerts.yaml` is optional. Unknown keys, wrong types and impossible combinations are refused; the error
names the file and the field.

A *duration* is a whole number and a unit: `500ms`, `60s`, `5m`, `24h`, `7d`.
"""

ENVIRONMENT = {
    config.CONFIG_ENV: ("`config/` of the checkout", "The folder that holds `jobs/` and `profiles/`."),
    workspace.PROFILE_ENV: ("`local`", "The profile, if a command or DAG names none."),
    workspace.ROOT_ENV: ("the profile's `root`", "Replaces the profile's `root`."),
    spares.SPARES_ENV: ("the profile's `spares`", "Replaces the profile's `spares`."),
    jars.JARS_ENV: ("`.jars/` of the checkout", "The folder of the pinned JVM jars."),
    jars.MIRROR_ENV: ("Maven Central", "Root of the Maven repository from which set-up downloads the jars."),
    "STREAMWARDEN_QUALITY_SCHEDULE": ("none", "Schedule of DAG `quality`, in Airflow's notation."),
    "STREAMWARDEN_CORRECTIONS_SCHEDULE": ("none", "Schedule of DAG `corrections`."),
    "STREAMWARDEN_VERIFY_SCHEDULE": ("none", "Schedule of DAG `verify_savepoints`."),
    "STREAMWARDEN_HOUSEKEEPING_SCHEDULE": ("`@hourly`", "Schedule of DAG `housekeeping`; empty: never."),
    "STREAMWARDEN_WATCH_SCHEDULE": ("`*/5 * * * *`", "Schedule of DAG `watch`; empty: never."),
    "STREAMWARDEN_SUPERVISE_RETRIES": (
        "1000",
        "Retries of a job's `supervise` task, for faults of Airflow, not of the job. Read when DAG files are parsed.",
    ),
    "STREAMWARDEN_ADVISE_SCHEDULE": ("none", "Schedule of DAG `advise`."),
    "STREAMWARDEN_KAFKA_SECURITY_PROTOCOL": (
        "none",
        "`security.protocol` of Kafka's clients. Set every client property so, with `_` for a dot; it"
        " overrides the job's YAML.",
    ),
    "STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG": ("none", "`sasl.jaas.config` of Kafka's clients: the login."),
    schema_registry.REGISTRY_ENV: (
        "none",
        "Address of the schema registry, with its login; it overrides `value.registry` of a source.",
    ),
    "STREAMWARDEN_REDIS_URL": ("none", "Address of the Redis server of serving stores; it overrides `serve.url`."),
    local.DRIVER_MODULE_ENV: (
        "`streamwarden.driver`",
        "For tests: the module that is launched instead of the driver.",
    ),
}
"""Variable: (default, meaning)."""

_NAMES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    timedelta: "duration",
    AwareDatetime: "time with its zone",
}


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    parts += ["## A job: `config/jobs/NAME.yaml`\n", *_model(JobSpec)]
    parts += ["### Spark settings that are not free\n"]
    parts += ["`spark` accepts any setting except these, which follow from other fields:\n"]
    parts += [_table(("setting", "follows from"), [(f"`{key}`", why) for key, why in _OWNED_SETTINGS.items()])]
    parts += ["## A place to run: `config/profiles/NAME.yaml`\n", *_model(Profile)]
    parts += ["## Notifications: `config/alerts.yaml`\n", *_model(AlertSpec)]
    parts += ["## Environment variables\n"]
    rows = [(f"`{name}`", default, meaning) for name, (default, meaning) in ENVIRONMENT.items()]
    parts += [_table(("variable", "default", "meaning"), rows)]
    return "\n".join(parts)


def _model(model: type[BaseModel], heading: str = "", seen: set[type] | None = None) -> Iterator[str]:
    """Yield a model's section, and after it those of the models that its fields hold."""
    # A model that two fields share is described once.
    seen = set() if seen is None else seen
    seen.add(model)
    if heading:
        yield f"### {heading}\n"
    yield inspect.cleandoc(model.__doc__ or "") + "\n"
    rows, inner = [], []
    for name, field in model.model_fields.items():
        # A list, not a table: a meaning with the reason for its default is too long for a cell.
        default = _default(field)
        said = default if default in ("required", "optional") else f"default {default}"
        rows.append(f"- **`{field.alias or name}`** ({_type(field)}, {said}). {_meaning(field)}".rstrip())
        inner += [(name, held) for held in _models(field.annotation) if held not in seen]
    yield "\n".join(rows) + "\n"
    for name, held in inner:
        if held in seen:
            continue
        yield from _model(held, _heading(name, held), seen)


def _heading(name: str, model: type[BaseModel]) -> str:
    kind = model.model_fields.get("kind")
    form = model.model_fields.get("format")
    if form and get_origin(form.annotation) is Literal:
        return f"`{name}`, format `{get_args(form.annotation)[0]}`"
    if "warn" in model.model_fields:
        return f"`{name}`, and the other limits of its kind"
    return f"`{name}`, kind `{get_args(kind.annotation)[0]}`" if kind else f"`{name}`"


def _models(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models(argument)]


def _meaning(field: FieldInfo) -> str:
    held = _models(field.annotation)
    if field.description is None and len(held) == 1:
        return inspect.cleandoc(held[0].__doc__ or "").partition("\n\n")[0]
    return field.description or ""


def _type(field: FieldInfo) -> str:
    bounds = {type(item).__name__: item for item in field.metadata}
    text = _words(field.annotation)
    low = getattr(bounds.get("Ge"), "ge", None)
    high = getattr(bounds.get("Le"), "le", None)
    if low is not None:
        text += f", {low} to {high:,}" if high is not None else f", at least {low:,}"
    return text


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        # "or nothing" is what the default says.
        return " or ".join(dict.fromkeys(_words(one) for one in arguments if one is not type(None)))
    if origin is tuple:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"mapping of {_words(arguments[0])} to {_words(arguments[1])}"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "mapping"
    return _NAMES.get(annotation, "anything")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ("", (), {}):
        return "none"
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, BaseModel):
        own = value.model_dump(mode="json", exclude_unset=True)
        return f"`{{{', '.join(f'{name}: {said}' for name, said in own.items())}}}`" if own else "optional"
    return f"`{value}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    # A bar ends a cell, wherever it stands.
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"


def main() -> int:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET.name}: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
