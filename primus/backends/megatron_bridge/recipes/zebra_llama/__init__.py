"""Zebra-Llama models."""
