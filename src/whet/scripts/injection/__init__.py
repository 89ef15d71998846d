"""Run a training script that nobody has changed: start it, see its loop from inside, apply a recipe, keep its files."""
