"""The search for what makes a model faster here, and the proof.

Nothing is imported here: a process of the finals must not hold what only the search needs. `whet.tune` is
`whet.tuner.tuning.tune`.
"""
