"""`python -m primus` is the command `primus`."""

from primus.cli.main import main

if __name__ == "__main__":
    main()
