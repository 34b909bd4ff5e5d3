"""Moonlight models."""
