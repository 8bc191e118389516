"""Libraries of optional extras, imported where they are used."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def install_command(name: str) -> str:
    """The command that installs an extra, in a checkout or elsewhere."""
    in_checkout = (Path(__file__).parents[1] / "pyproject.toml").is_file()
    return f"pip install -e '.[{name}]'" if in_checkout else f"pip install 'diabat[{name}]'"


def extra(library: str, name: str = "hf") -> Any:
    """Import a library, or a module of it such as ``transformers.masking_utils``, that the extra ``name`` installs.

    Raises:
        ImportError: If it is not installed; the message contains the command that installs it.
    """
    package = library.partition(".")[0]
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        got = f"got none; {install_command(name)}."
        raise ImportError(f"{package}: expected the package of this name, {got}") from None
