"""``python -m kvsim``: the command line."""

from kvsim.cli import main

if __name__ == "__main__":
    main()
