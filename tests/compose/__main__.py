"""``make compose-test``: build docker-compose.yml, bring it up, run the main job on it; with faults if asked for.

Exit code 0 only if every step was done and every table is equal to a batch computation. Leaves nothing but images.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import time
from contextlib import ExitStack

from tests.compose.engine import EngineError, find_engine
from tests.compose.faults import BY_NAME, VOLUME_FULL, effective, inject
from tests.compose.journey import Journey
from tests.compose.stack import Stack, StackError

# printed: a person waits for it
# ruff: noqa: T201


def main(arguments: list[str]) -> int:
    """Run the test."""
    parser = argparse.ArgumentParser(prog="compose-test", description=__doc__)
    parser.add_argument("--faults", default="0", help="a number, or names with commas: " + ", ".join(BY_NAME))
    parser.add_argument("--seed", type=int, default=0, help="of the choice of faults beyond one of each")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no fault later than that")
    parser.add_argument("--profile", default="cluster", choices=["cluster", "compose_s3"])
    parser.add_argument("--no-build", action="store_true", help="use the image that is there")
    parser.add_argument("--only-faults", action="store_true", help="leave savepoint, rescale, quality and gate out")
    parser.add_argument("--keep", action="store_true", help="leave the stack up until Ctrl-C")
    given = parser.parse_args(arguments)
    # As Ctrl-C: what is up is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(given, planned(given.faults, given.seed, given.profile))
    except (EngineError, StackError) as error:
        print(f"compose-test: FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def planned(wanted: str, seed: int, profile: str) -> list[str]:
    """Return the faults' names: one of each that the profile can notice, before any comes twice."""
    known = effective(profile)
    if not wanted.isdigit():
        names = wanted.split(",")
        if unknown := set(names) - {*known, VOLUME_FULL}:
            raise SystemExit(f"compose-test: {profile} has no faults {', '.join(sorted(unknown))}")
        return names
    chooser, plan = random.Random(seed), list(known)
    while len(plan) < int(wanted):
        plan.append(chooser.choice(known))
    return plan[: int(wanted)]


def run(given: argparse.Namespace, faults: list[str]) -> None:
    """Build, bring up, and go through the steps."""
    engine = find_engine()
    if not given.no_build:
        began = time.monotonic()
        engine.build()
        print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    stack = Stack(engine, profile=given.profile, keep=given.keep, small_volume=VOLUME_FULL in faults)
    with ExitStack() as open_:
        open_.enter_context(engine.served(stack.project))
        open_.enter_context(stack)
        stack.say("up and healthy")
        journey = Journey(stack)
        journey.deploy()
        if not given.only_faults:
            journey.savepoint("card_sessions")
            journey.rescale("card_sessions", 6)
            journey.quality()
        for number, name in enumerate(faults, start=1):
            if time.monotonic() - stack.began > given.minutes * 60:
                stack.say(f"{number - 1} of {len(faults)} faults in {given.minutes:.0f} minutes")
                break
            stack.say(f"fault {number} of {len(faults)}: {name}")
            stack.say(f"{name}: every job commits again after {inject(stack, name):.0f} s")
            stack.say(f"{name}: every job is supervised, {journey.supervised():.0f} s later")
        if not given.only_faults:
            journey.metrics()
        # Before the gate: what it waits for comes after all that has landed.
        journey.drain()
        if not given.only_faults:
            journey.gate()
        journey.stop()
        stack.say(f"done: {journey.seconds}")
    stack.say("down")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
