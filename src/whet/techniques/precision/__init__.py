"""Techniques that compute or keep numbers in fewer bits."""
