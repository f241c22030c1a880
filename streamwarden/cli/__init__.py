"""The command line; see :mod:`streamwarden.cli.app`."""
