"""Serve on Ray Serve, over many machines: whet serve --ray ADDRESS."""
