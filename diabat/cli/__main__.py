"""``python -m diabat.cli``."""

from diabat.cli.app import main

if __name__ == "__main__":
    main()
