"""What the templates of Hopper kernels need to know: which parts, which fields, which names."""
