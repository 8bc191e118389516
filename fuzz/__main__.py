"""``python -m fuzz``: the API, then the files; ``make fuzz``."""

from __future__ import annotations

import argparse
import sys

from fuzz import campaign

SHARES = {"fuzz.api": 0.4, "fuzz.files": 0.6}


def main() -> int:
    """Run both campaigns; return 1 if any of them found anything."""
    options = argparse.ArgumentParser(prog="python -m fuzz")
    options.add_argument("--minutes", type=float, default=10.0, help="time to use")
    options.add_argument("--seed", type=int, default=0, help="seed of the campaigns")
    options.add_argument("--workers", type=int, default=2, help="processes")
    given = options.parse_args()
    found = 0
    for module, share in SHARES.items():
        common = ["--seed", str(given.seed), "--workers", str(given.workers)]
        found |= campaign.main(module, [*common, "--minutes", str(share * given.minutes)])
    return found


if __name__ == "__main__":
    sys.exit(main())
