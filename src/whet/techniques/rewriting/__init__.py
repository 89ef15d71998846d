"""Rewrite a model's graph for techniques: trace it, find patterns in it, cast it to fewer bits."""
