"""Say how often a replica writes that it answers, and how long it may be silent."""

BEAT_S = 5.0

SILENT_S = 60.0
"""A replica that has written nothing for so long hangs. A step of its engine takes less; see tensor_parallel too."""
