"""Programs written for a GPU that is not there, and the report of their launches."""
