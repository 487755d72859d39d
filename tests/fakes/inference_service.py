"""A speaker that answers nobody, and leaves when it is told to: there is no torch to load."""

import select
import sys

if __name__ == "__main__":
    select.select([int(sys.argv[2])], [], [])
