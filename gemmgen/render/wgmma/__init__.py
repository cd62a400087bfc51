"""The view of the templates of Hopper kernels: parts, fields, names."""
