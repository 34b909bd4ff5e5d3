"""Kimi models."""
