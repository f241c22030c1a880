"""The fields of all documents, and the rules for those that are added: old documents must be read, and old code too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from streamwarden.model.gate import GateEvents, GateRecord
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.model.spec_base import Strict
from streamwarden.operations.repair import DOCUMENTS

__all__ = ["faults", "models"]

ROOTS = (*DOCUMENTS.values(), Manifest, GateRecord, GateEvents, DriverHost, DriverStart, JobSpec)


def models(*roots: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return some models, default all documents, and every model that they are made of, by name."""
    found: dict[str, type[BaseModel]] = {}

    def walk(model: type[BaseModel]) -> None:
        name = f"{model.__module__.rpartition('.')[2]}.{model.__name__}"
        if name in found:
            return
        found[name] = model
        for field in model.model_fields.values():
            for inner in parts(field.annotation):
                walk(inner)

    for root in roots or ROOTS:
        walk(root)
    return found


def parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from parts(inner)


def faults(model: type[BaseModel], known: list[str]) -> list[str]:
    """Return what is wrong with the fields that a model has got since the kept list, or has lost."""
    found = []
    for name, field in model.model_fields.items():
        if name in known:
            continue
        if field.is_required():
            found.append(f"{name}: documents of earlier versions lack it, so it needs a default")
        elif issubclass(model, Strict):
            default = field.get_default(call_default_factory=True)
            if field.exclude_if is None or not field.exclude_if(default):
                found.append(f"{name}: earlier versions refuse it; leave it out of documents while it has its default:"
                             " Field(exclude_if=…)")  # fmt: skip
    if issubclass(model, Strict):
        found += [f"{name}: specs of earlier versions have it" for name in known if name not in model.model_fields]
    return found
