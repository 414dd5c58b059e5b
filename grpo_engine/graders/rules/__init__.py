"""One module for each kind of grader.

Belongs here: a rule's fields and how it scores one completion.
Belongs elsewhere: processes and deadlines (`pool/`).
"""
