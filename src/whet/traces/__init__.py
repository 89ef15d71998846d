"""Redirect the old name of `whet.trace_profiler`; see whet.moved."""
