"""Compare two variants: test the claim that the new one is faster than the old one, or not slower than it.

`compare` measures two sides in processes, by a schedule, until a stopping rule says that there are enough pairs. It
returns a `Claim`. `whet tune`, `whet bench`, `whet audit --measure` and `whet.compare` all use it.
"""
