"""Weights of few bits that threads decode in registers to the type of the activations."""
