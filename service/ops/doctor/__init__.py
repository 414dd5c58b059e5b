"""`grpo doctor`: checks a machine and a deployment and gives advice.

Belongs here: one function per check. Belongs elsewhere: repairs.
"""
