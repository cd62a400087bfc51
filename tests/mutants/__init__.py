"""Faults to plant in kernels, each with what the simulator must say of it."""
