"""GPT-3, and a tiny model to try a run with."""
