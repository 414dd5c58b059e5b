"""Graders of suites of generated tasks. A suite's package is imported in processes of its own only."""
