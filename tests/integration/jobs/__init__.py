"""Job modules for the driver's tests."""
