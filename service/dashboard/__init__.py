"""The page for people at `/`: static files only. It reads its data from the public API, with a key."""
