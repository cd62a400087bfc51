"""The simulator against ConSan on a GPU: the same kernels, each in a process of its own."""
