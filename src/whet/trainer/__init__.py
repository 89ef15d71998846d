"""Train language models from a configuration: whet train."""
