"""The CLI's output: tables, progress, errors, interrupts."""
