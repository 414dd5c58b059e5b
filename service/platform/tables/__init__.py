"""The database's tables as SQLAlchemy classes: columns and indexes only.

Belongs here: what a migration creates. Belongs elsewhere: queries (each room's repository).
"""
