"""Runs an attempt's ranks on a Ray cluster, or on a private one on this machine.

Belongs here: everything that uses Ray. Only the processes of `driver.py`, `rank.py` and `watch.py` import it,
because Ray ends a process that loses its cluster, which must not happen to a worker.
Belongs elsewhere: which job runs where (`attempt/`), processes of one machine (`launchers/`).
"""
