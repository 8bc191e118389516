"""Import every module of the installed package; fails on an undeclared dependency or missing package data."""

from __future__ import annotations

import importlib
import pkgutil

import diabat


def main() -> None:
    """Import all modules, then touch the packaged data."""
    names = [
        m.name for m in pkgutil.walk_packages(diabat.__path__, "diabat.") if not m.name.endswith("__main__")
    ]
    for name in names:
        importlib.import_module(name)
    from diabat.circuits import available_schedules, schedule

    for name in available_schedules():
        schedule(name)
    print(f"{len(names)} modules imported from {diabat.__path__[0]}")


if __name__ == "__main__":
    main()
