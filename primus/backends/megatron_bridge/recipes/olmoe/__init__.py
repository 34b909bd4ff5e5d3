"""OLMoE models."""
