"""Profile a model or a training loop that is named on the command line, in a process of its own."""
