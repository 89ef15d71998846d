"""Prune models: masks of zeros that stay, schedules for them, and channels, heads and layers that are really gone."""
