"""Run a whole graph of operations on plain memory as one call of C++ kernels.

whet.kernels.graph.operations says what an operation is, and whet.kernels.graph.plan runs a list of them.
"""
