"""Training-free GRPO: the prompt learns, the weights stay (arXiv 2510.08191)."""
