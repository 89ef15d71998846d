"""The first name of `whet.trace_profiler`; see whet.moved."""
