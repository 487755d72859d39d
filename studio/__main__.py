"""`python -m studio`: the `studio` command where no script is installed."""

from studio.cli import main

if __name__ == "__main__":
    main()
