"""Features of matmuls and of kernels: each folder owns all sides of one feature.

A side implements the hooks that a stage of gemmgen declares as a protocol. Stages loop over the sides that
they are given and name no feature. The registry has the names of the folders; beside it, the table of each
stage collects the sides of its stage.
"""
