"""Say how often a replica writes that it answers, and after how long it hangs."""

BEAT_S = 5.0

SILENT_S = 60.0
"""How long a replica may write nothing, and its event loop may do nothing."""

STEP_S = 300.0
"""How long a step of an engine may take: a long prompt of a large model takes minutes on a few cores."""
