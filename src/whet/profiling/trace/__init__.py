"""Read traces that PyTorch's profiler recorded: find where the time went, and what changed between two of them."""
