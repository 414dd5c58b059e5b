"""What an attempt publishes: cards, chains of jobs, exports."""
