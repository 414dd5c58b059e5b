"""A job whose rows and rewards are those of a Reasoning Gym task, and a program that runs it."""
