"""Import every module of the installed package; fails on an undeclared dependency or missing package data.

Modules that need an extra are left out where it is not installed.
"""

from __future__ import annotations

import importlib
import pkgutil

import diabat

EXTRAS = {
    "dwave",
    "minorminer",
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "dask",
    "distributed",
    "pandas",
}


def main() -> None:
    """Import all modules, then touch the packaged data."""
    names = [
        m.name for m in pkgutil.walk_packages(diabat.__path__, "diabat.") if not m.name.endswith("__main__")
    ]
    left_out = 0
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:  # also of a module that names its extra
            if str(error.name).partition(".")[0] not in EXTRAS:
                raise
            left_out += 1
    from diabat.circuits import available_schedules, schedule

    for name in available_schedules():
        schedule(name)
    print(f"{len(names) - left_out} modules imported from {diabat.__path__[0]}, {left_out} need an extra")


if __name__ == "__main__":
    main()
