"""Swap-AB: the instruction multiplies B.T and A.T."""
