"""Split-K: several programs multiply parts of K for one tile."""
