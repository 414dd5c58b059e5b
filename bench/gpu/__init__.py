"""Benchmarks for one large GPU: training, sampling and whole steps. Does not measure the service."""
