"""Compute the norms of heads, rotary positions and the cache's new entries, for the decoder.

Outside a decoder's step this is slower than torch's own operators, so it is not a torch operator.
"""
