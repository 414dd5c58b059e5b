"""Suites of generated tasks: a task, a size and a seed become rows.

The rows, and the list of tasks, come from a child process, `python -m service.suites`, which runs the suite
with limits; nothing else in the service imports it. Boundary: `jobs/intake/` stores the rows as files.
"""
