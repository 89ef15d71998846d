"""Serve one decoder with several processes of this machine, each with a share of its weights and of its cores."""
