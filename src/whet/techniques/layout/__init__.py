"""Hold the techniques that change the order of values in memory."""
