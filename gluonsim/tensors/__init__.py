"""Tensors of a launch: which elements of a storage an access touches, and what TMA moves of them."""
