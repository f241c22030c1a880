"""What an examination finds: whole or not, with the error of the catalogue and the commands that mend it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from streamwarden.errors import CATALOGUE, ErrorCode, StreamwardenError

__all__ = ["Finding", "Verdict", "broken", "in_order", "note", "of_error", "whole"]

_RANKS = ("repair", "operations", "savepoints", "savepoint", "rescale", "restore", "deploy")
"""Commands in the order in which they mend a job: each may need what the ones before it have mended."""

_COMMAND = re.compile(r"`(streamwarden (?!doctor)[^`]+)`")
_GAP = re.compile(r"(?<![\w-])[A-Z]{2,}(?![\w-])")
"""A word that stands for something, such as ID."""


class Verdict(StrEnum):
    """Whether something is whole."""

    WHOLE = "whole"
    NOTE = "note"
    """Nothing is lost: something waits for a person, or can be tidied up."""
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One finding.

    Parameters
    ----------
    job
        The job; empty for the place itself.
    about
        What was examined, such as ``checkpoint`` or ``table trips``.
    verdict
        Whether it is whole.
    what
        What was found, in words.
    code
        The error's code in the catalogue; empty if nothing is broken.
    remedy
        What to do, in words.
    commands
        The commands that mend it, in their order, without options for the place; empty if none does.
    """

    job: str
    about: str
    verdict: Verdict
    what: str
    code: str = ""
    remedy: str = ""
    commands: tuple[str, ...] = ()


def whole(job: str, about: str, what: str) -> Finding:
    """Return that something is whole."""
    return Finding(job, about, Verdict.WHOLE, what)


def note(job: str, about: str, what: str, *commands: str) -> Finding:
    """Return that nothing is lost, but something can be done."""
    return Finding(job, about, Verdict.NOTE, what, commands=commands)


def broken(
    job: str, about: str, code: ErrorCode, what: str, commands: tuple[str, ...] = (), *, remedy: str = ""
) -> Finding:
    """Return that something is not whole.

    Parameters
    ----------
    remedy
        Default the catalogue's.
    """
    return Finding(job, about, Verdict.BROKEN, what, code, remedy or CATALOGUE[code].remedy, commands)


def of_error(job: str, about: str, error: StreamwardenError, commands: tuple[str, ...] = ()) -> Finding:
    """Return an error as a finding.

    Parameters
    ----------
    commands
        Default those that the error's remedy names completely.
    """
    remedy = re.sub(r"\bJOB\b", job, error.remedy) if job else error.remedy
    named = tuple(one for one in _COMMAND.findall(remedy) if not _GAP.search(one))
    return broken(job, about, error.code, error.what, commands or named, remedy=remedy)


def in_order(found: list[Finding]) -> list[str]:
    """Return the commands that mend what is broken, once each, in the order in which they are to be run."""
    commands = list(
        dict.fromkeys(one for finding in found if finding.verdict is Verdict.BROKEN for one in finding.commands)
    )
    restored = {command.split()[2] for command in commands if command.startswith("streamwarden restore ")}
    # A restore starts its job.
    needed = [one for one in commands if one.split()[1] != "deploy" or one.split()[2] not in restored]
    return sorted(needed, key=_rank)


def _rank(command: str) -> int:
    verb = command.split()[1]
    return _RANKS.index(verb) if verb in _RANKS else len(_RANKS)
