"""Norms of heads, rotary positions and the cache's new entries, for the decoder.

Alone this is slower than torch's own operators, so it is no torch operator.
"""
