"""Tune a training run: with the same search and verdict as a model, and the proof that it is the same training."""
