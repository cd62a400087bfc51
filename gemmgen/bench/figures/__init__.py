"""Records as tables and plots."""
