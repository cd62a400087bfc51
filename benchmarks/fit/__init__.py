"""The constants of the cost model, fitted to the records of suites: ``python -m benchmarks.fit``."""
