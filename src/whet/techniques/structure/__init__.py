"""Techniques that change the graph of a model without changing its numbers."""
