"""`python -m weightsync`."""

from weightsync.cli import main

if __name__ == "__main__":
    main()
