"""`python -m studio`: the `studio` command if its script is not installed."""

from studio.cli import main

if __name__ == "__main__":
    main()
