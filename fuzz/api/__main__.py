"""``python -m fuzz.api``: see ``--help``."""

import sys

from fuzz.campaign import main

if __name__ == "__main__":
    sys.exit(main("fuzz.api"))
