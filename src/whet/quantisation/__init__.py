"""Quantisation: what can be quantised, ranges, formats, and the layers that lose least by it."""
