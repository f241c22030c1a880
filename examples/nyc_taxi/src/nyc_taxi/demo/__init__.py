"""The demo, and the batch computations that its tables are compared with."""
