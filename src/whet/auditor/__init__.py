"""Reads PyTorch code and says what makes it slow. The standard library, and libcst for fixes; never torch."""
