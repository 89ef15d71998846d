"""Serve one model by several processes of this machine, behind a thin proxy."""
