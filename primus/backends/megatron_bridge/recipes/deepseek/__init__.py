"""DeepSeek models."""
