"""Quantise layers: find those that can be quantised, their ranges and formats, and those that lose least by it."""
