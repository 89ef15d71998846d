"""Hold the techniques that compute or store in fewer bits."""
