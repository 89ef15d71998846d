"""Run a graph as one call of whet's own kernels: its program, its weights, and the memory that it computes in."""
