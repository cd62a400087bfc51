"""What a kernel must compute, in numbers: its inputs, the exact result, and how close to it is right."""
