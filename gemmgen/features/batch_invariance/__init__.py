"""Batch invariance: a row of D has the same bits whatever M and the other rows are."""
