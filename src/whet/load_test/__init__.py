"""A load generator for language-model servers: replays production traffic and says what its users would have seen."""
