"""The `grpo` commands that use the HTTP interface, one module for each group."""
