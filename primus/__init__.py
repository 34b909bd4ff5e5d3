"""Primus trains large language models from one YAML file, on a laptop's CPU or on many accelerators."""

__version__ = "0.1.0"
