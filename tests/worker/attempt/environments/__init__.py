"""Jobs with environments, from the queue to their end."""
