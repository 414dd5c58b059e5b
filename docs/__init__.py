"""Pages for users, and the programs that generate some of them. No other package imports it."""
