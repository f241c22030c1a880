"""The fault matrix, `make chaos`: faults injected into real drivers and a real Airflow, and what became of them."""
