"""Temporary directories and worker processes, cleaned up however the run ends."""
