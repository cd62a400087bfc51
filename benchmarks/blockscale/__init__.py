"""fp8 kernels with scales of blocks beside torch's call of the same scales, on Hopper.

``python -m benchmarks.blockscale.prepare FOLDER`` renders the kernels that the planner ranks first, and needs
no GPU. ``python -m benchmarks.blockscale.run FOLDER RECORD.jsonl`` times them on one.
"""
