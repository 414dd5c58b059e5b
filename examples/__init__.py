"""Small models, datasets, job files and a demonstration: what a new user runs first."""
