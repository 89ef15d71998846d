"""Redirect the old name of `analyse_file`; see whet.moved."""

from whet.moved import moved

__getattr__ = moved(__name__, {"analyse_file": "whet.trace_profiler.report"})
