"""``python -m streamwarden.cli``."""

from streamwarden.cli import main

main()
