"""C: a matrix that an epilogue adds, and over which D may be written."""
