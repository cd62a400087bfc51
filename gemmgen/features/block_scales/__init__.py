"""Scales of A and B for blocks of K."""
