"""One claim, whatever is measured: the new variant is faster than the old one, or not slower than it.

`compare` measures two sides in processes, by a schedule, until a stopping rule says enough. It ends in one record, a
`Claim`. `whet tune`, `whet bench`, `whet audit --measure` and `whet.compare` all stand on it.
"""
