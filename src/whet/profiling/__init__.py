"""Find where time goes and what bounds it: in a model, in a training step, in a recorded trace."""
