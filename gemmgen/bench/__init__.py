"""From a module to a timing record, and from a record to a table and a plot."""
