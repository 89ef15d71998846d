"""Measure a target at many sizes, save baselines, and fail CI when it becomes slower: whet bench."""
