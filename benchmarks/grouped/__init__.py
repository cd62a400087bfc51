"""Kernels of groups and of batches beside torch: the layers of mixtures of experts, and shapes of torch.bmm.

``python -m benchmarks.grouped.prepare FOLDER`` renders the kernels that the planner ranks first, and needs no
GPU. ``python -m benchmarks.grouped.run FOLDER RECORD.jsonl`` times them on one, and ``python -m
benchmarks.grouped.summary RECORD.jsonl`` prints the figures of a record.
``python -m benchmarks.grouped.two_tiles`` estimates the time of a launch with two tile sizes, and ``python -m
benchmarks.grouped.last_wave`` the share of the last wave that is unused.
"""
