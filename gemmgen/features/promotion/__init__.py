"""Promotion: sums of a few products are added to sums of all."""
