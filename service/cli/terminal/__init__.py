"""What the CLI prints: tables, progress, errors, interrupts."""
