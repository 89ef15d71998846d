"""The phases of a training step: where each goes, by watching the loop that runs."""
