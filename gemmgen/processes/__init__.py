"""Temporary directories and child processes, which end with the run."""
