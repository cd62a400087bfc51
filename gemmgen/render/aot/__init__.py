"""Parts of the launchers in C."""
