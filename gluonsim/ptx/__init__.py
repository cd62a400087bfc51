"""PTX in inline assembly: a table of instructions, and texts of them."""
