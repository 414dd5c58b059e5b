"""The checks of preflight, one module for each subject: files, method, grader, machine.

Belongs here: finding problems in a request.
Belongs elsewhere: deciding what follows from them (`preflight.py`).
"""
