"""What tuning finds, beside every kernel of a committed set: ``python -m benchmarks.tune``."""
