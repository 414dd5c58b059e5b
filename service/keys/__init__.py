"""API keys over HTTP: who a key is, links that share one job, and keys and tenants for an admin key.

Boundary: `web/auth.py` creates, revokes and checks keys; this room lets clients do so.
"""
