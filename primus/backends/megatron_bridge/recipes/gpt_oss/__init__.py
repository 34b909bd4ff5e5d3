"""GPT-OSS models."""
