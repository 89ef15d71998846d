"""Hold the techniques that change how the process runs."""
