"""PyTorch traces that somebody recorded: where the time went, and what changed between two of them."""
