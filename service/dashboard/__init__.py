"""The page for people at `/`: static files only. What it shows it reads from the public API, with a key."""
