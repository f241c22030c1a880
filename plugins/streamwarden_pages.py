"""Streamwarden's pages in Airflow's UI."""

from streamwarden.airflow.pages.plugin import StreamwardenPlugin

__all__ = ["StreamwardenPlugin"]
