"""The example: NYC taxi trips, real or generated, replayed into a landing folder; and the demo that checks every job.

Not part of the library. An entry point adds its commands, ``streamwarden replay`` and ``streamwarden generate``.
"""
