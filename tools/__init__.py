"""Tools for those who work on gemmgen; none of them is in the wheel."""
