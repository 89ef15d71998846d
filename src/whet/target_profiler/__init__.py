"""What is named on the command line, profiled in a process of its own: a model, or a training loop."""
