"""Compute attention and MLP in the layers of decoders; whet.models.hybrid.native drives them."""
