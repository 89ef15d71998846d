"""Artefacts of `whet tune` behind a server: what they take and return, and batches of several clients' samples."""
