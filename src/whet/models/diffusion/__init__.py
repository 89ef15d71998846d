"""Turn frames into frames with diffusion models: a rolling batch of few steps, guidance, and models from disk."""
