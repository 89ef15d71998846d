"""Tune streams: which model, sampler, steps and threads make the most frames of the same quality, with proof."""
