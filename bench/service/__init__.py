"""Benchmarks of the API and the queue under load, and of the time from a request to a first step."""
