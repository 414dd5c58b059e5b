"""Chat with a trained or base model: `/v1/chat/completions`, answered by workers."""
