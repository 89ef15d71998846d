"""Batches that are put together from single requests: for models behind a server, and for streams."""
