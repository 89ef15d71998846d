"""Measured, kept, and held against what it was: sweeps, baselines, and a regression gate."""
