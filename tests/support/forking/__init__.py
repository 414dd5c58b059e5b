"""Processes of API, worker and engine that start in milliseconds: forked from one with all their imports."""
