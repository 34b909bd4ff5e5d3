"""Llama models."""
