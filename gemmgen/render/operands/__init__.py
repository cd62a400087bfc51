"""The operands of an epilogue beside the sums, as templates load them."""
