"""Let processes of one machine compute a model together, over memory that they share; models.decoder.share drives it."""
