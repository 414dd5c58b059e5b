"""How engine processes are started and stopped, warm ones included.

Belongs here: processes.
Belongs elsewhere: jobs and their rows (`attempt/`).
"""
