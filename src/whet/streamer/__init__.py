"""Run a model on a live stream of frames: sources, sinks, queues, and the test for drift."""
