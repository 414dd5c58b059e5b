"""Model processes that answer chat requests, and the dispatcher that feeds them."""
