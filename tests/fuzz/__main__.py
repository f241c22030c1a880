"""Fuzz the readers of what others wrote: ``make fuzz SECONDS=60 ONLY=offsets,suites``.

Each target runs in a process of its own, with limits: 10 s for an input, 2 GB of memory. Inputs that raise anything
but a StreamwardenError are written to ``var/fuzz/TARGET/found-*``; keep them as tests in tests/unit/test_fuzzed.py.
With atheris installed, coverage of the library guides the mutations; without it, they are random.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MADE = REPOSITORY / "var" / "fuzz"
INPUT_S, MEMORY = 10, 3 << 30
TOKENS = [b"null", b"0", b"-1", b"1e999", b"99999999999999999999", b"[]", b"{}", b'"', b"\xff", b"\0", b"../", b"NaN",
          b"[" * 2000, b"{\"a\":" * 500, b"\n", b"true", b"2001-99-99", b"? [a] : b\n", b"&a [*a]", b"!!python/x ",
          "\u00b2".encode()]  # fmt: skip


def main() -> int:
    """Run each target for its time, one after the other, and say what was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60, help="In all.")
    options.add_argument("--only", default="", help="Targets, with commas.")
    options.add_argument("--seed", type=int, default=None)
    options.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        return child(given.child, given.seconds, given.seed)
    # Not before: atheris instruments what is imported after it.
    from tests.fuzz.targets import TARGETS

    chosen = [one for one in given.only.split(",") if one] or list(TARGETS)
    seed = given.seed if given.seed is not None else time.time_ns() % 2**31
    guided = importlib.util.find_spec("atheris") is not None
    say(f"{len(chosen)} targets, {given.seconds:.0f} s, seed {seed}, {'atheris' if guided else 'random mutations'}")
    failed = []
    for name in chosen:
        share = given.seconds / len(chosen)
        command = [sys.executable, "-m", "tests.fuzz", "--child", name, "--seconds", str(share), "--seed", str(seed)]
        # Each starts for some seconds, and may end a long input later.
        done = subprocess.run(command, cwd=REPOSITORY, check=False, timeout=share * 3 + 180)
        if done.returncode:
            failed.append(f"{name} ({done.returncode})")
    say(f"found something in: {', '.join(failed)}; the inputs are in {MADE}" if failed else "nothing was found")
    return 1 if failed else 0


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"fuzz: {text}\n")
    sys.stdout.flush()


def child(name: str, seconds: float, seed: int) -> int:
    """Fuzz one target."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY * 4, MEMORY * 4))
    folder = MADE / name
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("atheris") is not None:
        return guided(name, seconds, seed, folder)
    from tests.fuzz.targets import TARGETS, end

    target, tries, found = TARGETS[name], 0, {}
    samples, chance = target.samples(), random.Random(seed)
    signal.signal(signal.SIGALRM, overdue)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            data = mutated(chance, samples) if tries >= len(samples) else samples[tries]
            tries += 1
            signal.alarm(INPUT_S)
            try:
                target(data)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                kind = f"{type(error).__name__} in {where.name}"
                if kind not in found:
                    found[kind] = data
                    path = folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
                    path.write_bytes(data)
                    say(f"{name}: {kind}: {str(error)[:120]!r}: {path.relative_to(REPOSITORY)}")
            finally:
                signal.alarm(0)
    finally:
        end()
    say(f"{name}: {tries:,} inputs, {len(found)} kinds of failure")
    return 1 if found else 0


def overdue(*_: object) -> None:
    """End an input that takes too long."""
    raise TimeoutError(f"more than {INPUT_S} s")


def mutated(chance: random.Random, samples: list[bytes]) -> bytes:
    """Return a sample with some bytes changed, cut, repeated, or replaced by what parsers stumble over."""
    data = bytearray(chance.choice(samples))
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        length = chance.choice((1, 2, 4, 16, 64))
        match chance.randrange(7):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + length]
            case 2:
                del data[at:]
            case 3:
                data[at:at] = data[at : at + length] * chance.choice((1, 2, 100))
            case 4:
                data[at : at + chance.choice((0, 1, length))] = chance.choice(TOKENS)
            case 5:
                value(chance, data)
            case _:
                other = chance.choice(samples)
                data[at : at + length] = other[: chance.randrange(len(other) + 1)][-length:]
    return bytes(data[:1_000_000])


def value(chance: random.Random, data: bytearray) -> None:
    """Replace a whole value behind a colon, of JSON or YAML: the structure stays whole."""
    colons = [at for at, one in enumerate(data) if one == ord(":")]
    if not colons:
        return
    begin = chance.choice(colons) + 1
    ends = [data.find(end, begin) for end in (b",", b"}", b"\n")]
    end = min((one for one in ends if one >= 0), default=len(data))
    data[begin:end] = b" " + chance.choice(TOKENS)


def guided(name: str, seconds: float, seed: int, folder: Path) -> int:
    """Fuzz one target by atheris, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["streamwarden", "spark_jobs", "json", "yaml"]):
        from tests.fuzz.targets import TARGETS

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for data in TARGETS[name].samples():
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    words = [sys.argv[0], str(corpus), f"-max_total_time={max(1, int(seconds))}", f"-timeout={INPUT_S}",
             f"-rss_limit_mb={MEMORY >> 20}", f"-artifact_prefix={folder}/found-", f"-seed={seed}", "-max_len=20000",
             "-verbosity=0"]  # fmt: skip
    atheris.Setup(words, TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
