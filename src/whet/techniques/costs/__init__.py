"""Measure where the time and the memory of a training step go, by phase and by layer."""
