"""Hold the techniques that rewrite the model's graph."""
