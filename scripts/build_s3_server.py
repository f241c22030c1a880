"""Build the S3 server that the tests run against: versitygw, pinned, into ``.tools/bin``. Done once, in minutes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from go_tool import TOOLS, BuildError, build

VERSION = "v1.8.0"
SERVER = TOOLS / "bin" / "versitygw"


def main() -> int:
    """Build the server, unless it is there in this version, or the tests are to use another one."""
    if os.environ.get("S3_ENDPOINT") or is_built():
        return 0
    began = time.monotonic()
    sys.stdout.write(f"setup: building versitygw {VERSION}, the tests' S3 server; some minutes, once\n")
    sys.stdout.flush()
    # Without symbols it is half the size.
    flags = ["-trimpath", f"-ldflags=-s -w -X=main.Version={VERSION}"]
    try:
        build(["install", *flags, f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"], programs=[SERVER.name])
    except BuildError as error:
        sys.stderr.write(
            f"the S3 server for the tests (versitygw {VERSION}) could not be built: {error}\n"
            "  What to do: put a Go on PATH and check the network (GOPROXY behind a mirror); or let the tests use\n"
            "  a server of yours: S3_ENDPOINT=http://host:port with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY;\n"
            "  or run `make test-fast`, which needs none.\n"
        )
        return 1
    sys.stdout.write(f"setup: versitygw {VERSION} built in {time.monotonic() - began:.0f} s\n")
    return 0


def is_built() -> bool:
    """Tell whether the program is there, in the pinned version."""
    if not SERVER.is_file():
        return False
    said = subprocess.run([SERVER, "--version"], capture_output=True, text=True, check=False)
    return VERSION in said.stdout


if __name__ == "__main__":
    sys.exit(main())
