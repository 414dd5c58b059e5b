"""Processes of API and worker that start in milliseconds: forked from one that has imported all they need."""
