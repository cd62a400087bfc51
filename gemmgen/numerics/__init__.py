"""Numbers of a kernel: its inputs, the exact result, and the tolerance of the kernel's result."""
