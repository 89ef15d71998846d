"""Predict what a training or a server of a model takes on a cluster, and choose a plan: whet plan."""
