"""Measures jobs on a Ray cluster of several hosts, which are network namespaces of this machine (root)."""
