"""Hypothesis sets no deadline here: on a busy machine any example can take long."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
