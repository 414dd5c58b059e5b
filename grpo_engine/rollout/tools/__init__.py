"""Tools that a model may call while it answers."""
