"""Pack documents into rows, find packed documents in masks, and keep attention within them."""
