"""One file per change, named by its date."""
