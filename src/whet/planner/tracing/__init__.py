"""Trace one rank of a plan with tensors that have no numbers, to see what its memory holds. It imports torch."""
