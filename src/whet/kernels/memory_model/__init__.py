"""Run a step of a decoder with long-term memory: see whet.models.memory_bank.native."""
