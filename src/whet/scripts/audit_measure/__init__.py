"""Measure what an audit's fixes are worth on this machine: run a training script with each fix, in a copy, in pairs."""
