"""The processes in which graders run, with their deadlines.

Belongs here: starting, feeding and ending grading processes.
Belongs elsewhere: the rules themselves (`rules/`).
"""
