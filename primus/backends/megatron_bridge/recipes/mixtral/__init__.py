"""Mixtral models."""
