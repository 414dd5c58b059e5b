"""Benchmarks. The docstring of each program names its command."""
