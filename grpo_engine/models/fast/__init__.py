"""Forward and backward passes of the Llama family in few operations, proven at load."""
