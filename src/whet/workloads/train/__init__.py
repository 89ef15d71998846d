"""How the weights of the built-in workloads were made: `python -m whet.workloads.train NAME`."""
