"""Mamba models."""
