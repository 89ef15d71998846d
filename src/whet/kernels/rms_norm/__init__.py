"""Compute root-mean-square normalisation, for the decoder.

Outside a decoder's step it is slower than torch's own operator, so it is not a torch operator.
"""
