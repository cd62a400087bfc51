"""Timelines of simulated launches: traces, and pictures of them."""
