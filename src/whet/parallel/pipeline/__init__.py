"""Share the layers of a model among processes, which compute micro-batches one behind the other."""
