"""Misaligned tensors: the wrapper copies rows over which TMA cannot stride."""
