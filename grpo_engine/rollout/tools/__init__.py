"""Tools that a model may call while it answers.

Belongs here: parsing calls, running them, rendering their results.
Belongs elsewhere: the options of tools in a job (`config/`).
"""
