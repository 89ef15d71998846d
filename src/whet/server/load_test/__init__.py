"""Generate load for language-model servers: replay production traffic, and report what its users would see."""
