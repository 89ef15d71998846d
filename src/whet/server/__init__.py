"""Serve language models: requests, paged state, a scheduler with one rule, sampling, speculation, and an engine."""
