"""Train on many processes, on PyTorch's own engines: who they are, how the work is divided, what they agree on."""
