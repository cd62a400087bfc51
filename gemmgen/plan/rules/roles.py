"""What the rules of CTAs and warps share."""

MAX_CLUSTER = 4
"""CTAs of a program.

8 are portable, but no Hopper tile gains by sharing among more than 4; on Blackwell none was measured.
"""
