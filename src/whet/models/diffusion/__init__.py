"""Hold the denoisers of real-time diffusion: networks that predict what noise hides in a frame."""
