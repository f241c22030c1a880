"""Check what is locked: known vulnerabilities, licences, and a bill of materials. `make audit` runs this.

Writes ``var/audit/``: ``requirements.txt`` (what an installation with all extras gets), ``advisories.json``,
``licences.json``, and ``sbom.cdx.json``, a CycloneDX 1.6 document of Python packages and jars.

``scripts/audit.toml`` has the allowed licences, and the exceptions with their reasons.

Exit codes: 0 nothing is wrong; 1 something is; 2 nothing is, but the advisories could not be read.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".tools" / "audit" / "bin"
MADE = ROOT / "var" / "audit"

PROBE = "jinja2==2.10"
"""A package with known vulnerabilities. pip-audit finds none, and succeeds, where an index has no advisories."""

_FRESH = timedelta(days=30)
"""An older copy of the database proves little: new advisories appear each day."""


def main() -> int:
    """Run all checks, and say what each found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--advisories", type=Path, help="A copy of the repository pypa/advisory-database.")
    given = options.parse_args()
    MADE.mkdir(parents=True, exist_ok=True)
    policy = tomllib.loads((ROOT / "scripts" / "audit.toml").read_text(encoding="utf-8"))
    locked = export()
    say(f"{len(locked)} packages are locked, with all extras and without the development's")
    problems = [*stale(policy), *licences(policy, locked)]
    bill_of_materials()
    found = from_folder(given.advisories, locked) if given.advisories else from_index()
    problems += judged(policy, found) if found is not None else []
    for one in problems:
        say(f"WRONG: {one}")
    if problems:
        return 1
    if found is None:
        say(
            "NOT CHECKED: the package index gives no advisories here: it has none for a package with known ones. Run"
            " this where PyPI can be reached, or with a copy of pypa/advisory-database: `make audit ADVISORIES=folder`"
        )
        return 2
    if given.advisories and (day := newest_of(given.advisories)) < datetime.now(UTC).date() - _FRESH:
        say(f"NOT CHECKED: the newest advisory in {given.advisories} is of {day}. Bring the copy up to date")
        return 2
    say("nothing is wrong")
    return 0


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"audit: {text}\n")
    sys.stdout.flush()


def export() -> dict[str, str]:
    """Write the requirements of an installation, and return its packages with their versions."""
    target = MADE / "requirements.txt"
    uv = [str(ROOT / ".tools" / "bin" / "uv"), "export", "--quiet", "--locked", "--all-extras", "--no-dev"]
    subprocess.run(
        [*uv, "--no-emit-workspace", "--no-annotate", "--no-header", "--no-hashes", "-o", str(target)],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    found = {}
    for line in target.read_text(encoding="utf-8").splitlines():
        if pinned := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", line):
            found[normal(pinned[1])] = pinned[2]
    return found


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def from_index() -> list[dict[str, Any]] | None:
    """Return the advisories that pip-audit finds; None if it has no database to ask."""
    probe = MADE / "probe.txt"
    probe.write_text(f"{PROBE}\n")
    if not (audited(probe, MADE / "probe.json") or [{}])[0].get("vulns"):
        return None
    found = audited(MADE / "requirements.txt", MADE / "advisories.json")
    if found is None or any("skip_reason" in one for one in found):
        return None
    return [
        {"package": one["name"], "version": one["version"], "ids": [vuln["id"], *vuln["aliases"]],
         "fixed": vuln["fix_versions"]}
        for one in found for vuln in one["vulns"]
    ]  # fmt: skip


def audited(requirements: Path, target: Path) -> list[dict[str, Any]] | None:
    """Run pip-audit, and return its dependencies; None if it failed."""
    target.unlink(missing_ok=True)
    command = [str(BIN / "pip-audit"), "-r", str(requirements), "--no-deps", "--disable-pip", "--format", "json"]
    # Its exit code is 1 both for findings and for an error.
    subprocess.run([*command, "-o", str(target), "--progress-spinner", "off", "--timeout", "30"],
                   check=False, capture_output=True)  # fmt: skip
    try:
        found: list[dict[str, Any]] = json.loads(target.read_text(encoding="utf-8"))["dependencies"]
    except (OSError, ValueError, KeyError):
        return None
    return found


def from_folder(folder: Path, locked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the advisories of a copy of PyPA's database."""
    import yaml

    files = [path for name in locked for path in sorted((folder / "vulns" / name).glob("*.yaml"))]
    if not files:
        raise SystemExit(f"audit: {folder} is no copy of pypa/advisory-database: it has no vulns/PACKAGE/*.yaml")
    found = []
    for path in files:
        one = yaml.safe_load(path.read_text(encoding="utf-8"))
        if one.get("withdrawn"):
            continue
        for name, fixed in affected(one, locked):
            found.append({"package": name, "version": locked[name], "ids": [one["id"], *one.get("aliases", [])],
                          "fixed": fixed})  # fmt: skip
    say(f"{len(files)} advisories in {folder} are about locked packages, of any version")
    (MADE / "advisories.json").write_text(json.dumps(found, indent=1))
    return found


def newest_of(folder: Path) -> date:
    """Return the day of the newest change in a copy of PyPA's database."""
    days = [
        day
        for path in folder.glob("vulns/*/*.yaml")
        for day in re.findall(r"^modified: \"?(\d{4}-\d\d-\d\d)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return date.fromisoformat(max(days, default="1970-01-01"))


def affected(advisory: Mapping[str, Any], locked: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the locked packages that an advisory is about, each with the versions that fix it."""
    from packaging.version import Version

    for part in advisory.get("affected", ()):
        name = normal(part["package"]["name"])
        if name not in locked:
            continue
        events = [event for each in part.get("ranges", ()) if each["type"] == "ECOSYSTEM" for event in each["events"]]
        version, inside = Version(locked[name]), locked[name] in part.get("versions", ())
        for event in sorted(events, key=lambda event: Version(next(iter(event.values())))):
            kind, at = next(iter(event.items()))
            if version >= Version(at):
                inside = inside or kind == "introduced"
                if kind == "fixed" or (kind == "last_affected" and version > Version(at)):
                    inside = False
        if inside:
            yield name, [str(event["fixed"]) for event in events if "fixed" in event]


def judged(policy: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the advisories that no exception covers."""
    ignored = {one["id"]: one for one in policy.get("ignored", ())}
    number = 0
    for one in found:
        if any(name in ignored for name in one["ids"]):
            number += 1
            continue
        fixed = f"fixed in {', '.join(one['fixed'])}" if one["fixed"] else "no version fixes it"
        yield f"{one['package']} {one['version']}: {', '.join(one['ids'])}; {fixed}"
    say(f"{len(found)} advisories, {number} of them ignored with a reason")


def stale(policy: Mapping[str, Any]) -> Iterator[str]:
    """Yield exceptions that have ended or have no reason."""
    for one in policy.get("ignored", ()):
        if not one.get("reason") or not isinstance(one.get("until"), date):
            yield f"scripts/audit.toml: ignored {one.get('id')}: needs a reason, and a date `until`"
        elif one["until"] < datetime.now(UTC).date():
            yield f"scripts/audit.toml: ignored {one['id']}: until {one['until']}, which has passed"
    for one in policy.get("licence", ()):
        if not one.get("reason"):
            yield f"scripts/audit.toml: licence of {one.get('package')}: needs a reason"


def licences(policy: Mapping[str, Any], locked: Mapping[str, str]) -> Iterator[str]:
    """Write the licences of the installed packages, and yield those that the policy does not allow."""
    done = subprocess.run(
        [str(BIN / "pip-licenses"), "--python", str(ROOT / ".venv/bin/python"), "--from", "mixed", "--format", "json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    there = {normal(one["Name"]): one for one in json.loads(done.stdout)}
    (MADE / "licences.json").write_text(json.dumps({name: there[name] for name in locked if name in there}, indent=1))
    allowed = {one.lower() for one in policy["allowed"]}
    excepted = {normal(one["package"]): one for one in policy.get("licence", ())}
    absent = [name for name in locked if name not in there]
    for name in sorted(locked.keys() - absent):
        said = there[name]["License"]
        if name in excepted:
            if excepted[name]["licence"] != said:
                yield f"{name}: its licence is {said!r}, and the exception is for {excepted[name]['licence']!r}"
        elif not is_allowed(said, allowed):
            yield f"{name} {locked[name]}: its licence {said!r} is not in scripts/audit.toml"
    said = f", {len(absent)} are for other machines ({', '.join(absent)})" if absent else ""
    say(f"licences of {len(locked) - len(absent)} packages, {len(excepted)} by exception{said}")


def is_allowed(said: str, allowed: set[str]) -> bool:
    """Return whether a licence is allowed: of alternatives any, of those that hold together all."""
    # Classifiers are a list, of which a reader may choose: "Artistic License; GPL".
    alternatives = re.split(r";| OR ", said)
    return any(
        all(each.strip().lower() in allowed for each in one.split(" AND ")) for one in alternatives if one.strip()
    )


def bill_of_materials() -> None:
    """Write the CycloneDX document: the packages, and the jars with their hashes."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    target = MADE / "sbom.cdx.json"
    command = [str(BIN / "cyclonedx-py"), "requirements", str(MADE / "requirements.txt"), "--sv", "1.6"]
    subprocess.run([*command, "--pyproject", str(ROOT / "pyproject.toml"), "-o", str(target)], check=True,
                   capture_output=True)  # fmt: skip
    made = json.loads(target.read_text(encoding="utf-8"))
    jars = tomllib.loads((ROOT / "streamwarden" / "spark" / "jars.toml").read_text(encoding="utf-8"))["jar"]
    for jar in jars:
        address = f"pkg:maven/{jar['group']}/{jar['artifact']}@{jar['version']}?type=jar"
        made["components"].append({
            "type": "library", "bom-ref": address, "purl": address, "group": jar["group"], "name": jar["artifact"],
            "version": jar["version"], "hashes": [{"alg": "SHA-256", "content": jar["sha256"]}],
        })  # fmt: skip
    text = json.dumps(made, indent=1)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise SystemExit(f"audit: {target} is no CycloneDX document: {error}")
    target.write_text(text)
    number = len(made["components"])
    say(f"bill of materials: {target.relative_to(ROOT)}, {number} components, {len(jars)} of them jars")


if __name__ == "__main__":
    sys.exit(main())
