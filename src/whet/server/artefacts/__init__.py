"""Serve artefacts of `whet tune`: find what they take and return, and batch the samples of several clients."""
