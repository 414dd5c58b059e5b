"""Training scripts in Python, read by their syntax tree: nothing in them is imported or run."""
