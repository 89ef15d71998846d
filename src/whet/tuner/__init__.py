"""Search for what makes a model faster on this machine, and prove it.

This module imports nothing, since a process of the finals must not hold in memory what only the search needs.
"""
