"""Trips: real ones, generated ones, and the replay that feeds them to a landing folder.

Knows neither Spark nor Airflow. The streaming jobs read the landing folder; nothing else passes between them.
"""
