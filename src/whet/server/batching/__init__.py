"""Form batches from single requests, for models behind a server and for streams."""
