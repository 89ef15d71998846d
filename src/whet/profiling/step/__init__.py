"""Measure the phases of a training step, and where each goes, by watching the loop that runs."""
