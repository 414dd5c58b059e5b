"""Graders of suites of generated tasks. A suite's package is imported only in separate processes."""
