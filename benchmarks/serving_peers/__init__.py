"""The contenders of benchmarks/serve_peers.py: one file an engine, and what they are asked to do."""
