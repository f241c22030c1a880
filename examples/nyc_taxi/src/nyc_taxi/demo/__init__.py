"""The demo, and the plain batch computations that its tables are compared with."""
