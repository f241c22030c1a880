"""Become a container's process: ``unshare … python container.py SPEC``. Needs the rights of root.

The container sees this machine's files, but writes to memory alone; its volumes are mounted over them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    base = Path(spec["folder"]) / "container"
    base.mkdir()
    mount("-t", "tmpfs", "tmpfs", str(base))
    root = base / "root"
    for name in ("upper", "work", "root"):
        (base / name).mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={base}/upper,workdir={base}/work", str(root))
    mount("-t", "proc", "proc", str(root / "proc"))
    for name in ("dev", "sys"):
        mount("--rbind", f"/{name}", str(root / name))
    for source, target in spec["mounts"]:
        # Links such as /var/run lead out of a root that is not entered yet.
        at = root / os.path.realpath(target).lstrip("/")
        if Path(source).is_dir():
            at.mkdir(parents=True, exist_ok=True)
        else:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.touch()
        mount("--bind", source, str(at))
        if target in spec["read_only"]:
            mount("-o", "remount,bind,ro", str(at))
    for path in spec["hidden"]:
        mount("-t", "tmpfs", "tmpfs", str(root / path.lstrip("/")))
    socket.sethostname(spec["hostname"])
    os.chroot(root)
    os.chdir(spec["folder_inside"])
    os.execvpe(spec["command"][0], spec["command"], spec["environment"])


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main()
