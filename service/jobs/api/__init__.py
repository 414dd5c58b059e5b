"""The endpoints of jobs, and how a stored job becomes a response.

Belongs here: translation between HTTP and the other folders. Belongs elsewhere: decisions.
"""
