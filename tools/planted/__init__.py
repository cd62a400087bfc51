"""What `make check` loses against `make nightly`: faults are planted in templates and in the planner."""
