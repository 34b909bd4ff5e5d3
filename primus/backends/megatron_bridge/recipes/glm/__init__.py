"""GLM models."""
