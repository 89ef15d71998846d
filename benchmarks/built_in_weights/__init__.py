"""Reproduce the weights of the built-in workloads: `python -m benchmarks.built_in_weights NAME`."""
