"""The families that users bring, as small models with their tokens, templates and realistic numbers."""
