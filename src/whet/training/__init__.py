"""Change the parts of a training loop by a recipe, and prove that it trains as before."""
