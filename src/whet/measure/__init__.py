"""Measure: clock, memory, statistics, and measurements in processes of their own.

This package imports nothing, since a process that only starts measurements does not need torch.
"""
