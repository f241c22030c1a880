"""``python -m streamwarden.cli``."""

from streamwarden.cli.app import main

main()
