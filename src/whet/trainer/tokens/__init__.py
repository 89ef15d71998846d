"""Turn files into tokens on disk, and tokens into batches that depend on nothing but a position."""
