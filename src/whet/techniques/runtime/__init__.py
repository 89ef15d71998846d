"""Techniques that change how the process runs the model."""
