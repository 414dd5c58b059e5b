"""API keys over HTTP: the caller's own key, links that share one job, and all keys and tenants for an admin
key.

Boundary: `web/auth.py` creates, revokes and checks keys; this room lets clients do so.
"""
