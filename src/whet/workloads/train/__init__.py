"""Reproduce the weights of the built-in workloads: `python -m whet.workloads.train NAME`."""
