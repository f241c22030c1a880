"""The example: NYC taxi trips, real or generated, replayed into a landing folder; and the demo that checks every job.

No part of the library. Its commands, ``streamwarden replay`` and ``streamwarden generate``, come by an entry point.
"""
