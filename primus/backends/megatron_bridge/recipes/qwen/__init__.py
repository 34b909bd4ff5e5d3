"""Qwen models."""
