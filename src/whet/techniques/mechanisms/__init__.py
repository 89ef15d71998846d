"""Change the parts of a training loop: what techniques for training are made of."""
