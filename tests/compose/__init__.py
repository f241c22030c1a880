"""docker-compose.yml brought up and put through the main job and through faults: ``make compose-test``."""
