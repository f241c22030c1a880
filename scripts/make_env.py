"""Make ``.env`` for docker-compose.yml: fresh random secrets, readable by their owner only.

Never overwrites: the database and Airflow's connections are encrypted with, or locked by, what stands there. To a file
of an earlier version it adds the secrets that are missing.
Usage: ``python3 scripts/make_env.py [FILE]``. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import base64
import os
import secrets
import sys
from pathlib import Path

# Letters and digits only: they pass unquoted through .env files, URLs and shells.
SECRETS = {
    "POSTGRES_PASSWORD": "the Airflow database's user `airflow`",
    "AIRFLOW_FERNET_KEY": "encrypts connections and variables in Airflow's database",
    "AIRFLOW_JWT_SECRET": "signs the tokens by which Airflow's parts and users authenticate",
    "AIRFLOW_API_SECRET_KEY": "signs the API server's sessions and the log servers' requests",
    "AIRFLOW_ADMIN_PASSWORD": "the login of user `admin` in Airflow's UI",
    "S3_ACCESS_KEY": "the S3 server's root user",
    "S3_SECRET_KEY": "its secret",
    "GRAFANA_ADMIN_PASSWORD": "the login of user `admin` in Grafana",
    "GRAFANA_SECRET_KEY": "encrypts what Grafana stores",
}


def render() -> str:
    """Return the text of a new ``.env``."""
    return "# Made by scripts/make_env.py. Secrets: never commit, never mail.\n" + _lines(list(SECRETS))


def write(path: Path) -> None:
    """Write a new ``.env``.

    Raises
    ------
    FileExistsError
        If there is one; it is left as it is.
    """
    # Made with its mode, not changed to it afterwards: there is no moment in which others can open it.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(render())


def complete(path: Path) -> list[str]:
    """Add missing secrets to an ``.env``, and return their names. What stands there is left as it is."""
    text = path.read_text(encoding="utf-8")
    given = {line.partition("=")[0].strip() for line in text.splitlines()}
    missing = [name for name in SECRETS if name not in given]
    if missing:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(("" if text.endswith("\n") or not text else "\n") + _lines(missing))
    return missing


def _lines(names: list[str]) -> str:
    return "".join(f"# {SECRETS[name]}\n{name}={_value(name)}\n" for name in names)


def _value(name: str) -> str:
    if name == "AIRFLOW_FERNET_KEY":
        # Fernet's own form: 32 bytes in URL-safe base64.
        return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    # 64 characters: what HMAC with SHA-512 wants of a key, by which Airflow signs its tokens.
    return secrets.token_hex(10 if name == "S3_ACCESS_KEY" else 32)


def main(arguments: list[str] | None = None) -> int:
    """Write or complete the file, and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / ".env"
    parser.add_argument("file", nargs="?", type=Path, default=default, help="default: .env of the checkout")
    path: Path = parser.parse_args(arguments).file
    try:
        write(path)
    except FileExistsError:
        if added := complete(path):
            sys.stdout.write(f"{path}: added {', '.join(added)}. The rest is left as it is.\n")
            return 0
        sys.stderr.write(
            f"{path} exists, and is left as it is: the volumes made with it need its secrets. To start afresh, remove"
            " the volumes (docker compose down --volumes) and the file, then run this again.\n"
        )
        return 1
    sys.stdout.write(
        f"{path}: made. The login is admin: in Airflow with AIRFLOW_ADMIN_PASSWORD, in Grafana with"
        " GRAFANA_ADMIN_PASSWORD.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
