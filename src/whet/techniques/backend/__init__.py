"""Hold the techniques that hand the graph to a compiler or to another runtime."""
