"""What stands between the flat keys and the container.

- `args/`: cross-key derivations and rules, one subject a file
"""
