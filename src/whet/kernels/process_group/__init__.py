"""Let processes of one machine compute a model together in memory that they share; models.hybrid.native_share does."""
