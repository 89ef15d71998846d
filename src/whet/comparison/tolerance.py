"""Hold what whet bench takes where nobody says otherwise, apart from the tests that need SciPy."""

TOLERANCE = 0.02  # the slowdown that passes
BASELINE_PROCESSES = 5  # for each point: how processes scatter can be told from so many
