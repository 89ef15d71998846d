"""Prove that a changed training is the same training: gradients, updates, rounding, held-out loss."""
