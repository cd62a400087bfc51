"""gemmgen: one YAML spec of a matmul in, one readable, standalone Gluon kernel module out."""

__version__ = "0.1.0"
