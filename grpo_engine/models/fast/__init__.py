"""The Llama family's forward and backward in few operations; proven against the model's own at load."""
