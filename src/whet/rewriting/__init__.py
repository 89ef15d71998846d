"""Rewriting of a model's graph: tracing, patterns, and casts to fewer bits. Techniques stand on it."""
