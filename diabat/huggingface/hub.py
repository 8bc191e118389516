"""Folders and names of models: where one lies, and what is refused before anything of it is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.files import parse_json, read_file

ADAPTER_CONFIG, PACKAGE_PREFIX = "adapter_config.json", "package:"
_MAX_BYTES, _MAX_INDEX_BYTES = 1 << 20, 1 << 26


def resolve(name: str, argument: str) -> str:
    """Return what Hugging Face's ``from_pretrained`` understands of a name; errors name it as ``argument``.

    It is a name on the hub, a folder, or ``package:NAME/FOLDER`` for a folder inside an installed Python package, which
    is not imported.  Addresses, and what :func:`check_folder` refuses, are refused.
    """
    if "://" in name:  # not shown: an address may hold an access token
        raise ArgumentError(argument, "the name of a model or a folder", "an address")
    path = _in_package(name, argument) if name.startswith(PACKAGE_PREFIX) else Path(name).expanduser()
    if path.is_dir() or name.startswith(PACKAGE_PREFIX):
        if not (path / "config.json").is_file():
            raise ArgumentError(argument, "a folder with config.json", f"'{name}' without one")
        check_folder(path, argument)
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ArgumentError(argument, "the name of a model or a folder", f"'{name}', which is neither")
    return name


def check_folder(folder: Path, argument: str) -> None:
    """Refuse a folder with devices or pipes, links to them, or an index of weights that names files elsewhere.

    transformers would read them.  Links to files may be there: the cache of the hub consists of them.
    """
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ArgumentError(argument, "a folder of regular files", f"'{file}', which is none")
        if file.name.endswith(".json") and ".index." in file.name:
            _check_index(file, argument)


def _check_index(file: Path, argument: str) -> None:
    try:
        named = parse_json(read_file(file, _MAX_INDEX_BYTES, follow=True))["weight_map"].values()
        outside = [name for name in named if name != Path(name).name]
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ArgumentError(argument, f"expected an index of weights in '{file}', got: {error}.") from None
    if outside:
        raise ArgumentError(argument, f"an index of files beside it in '{file}'", f"{outside[0]!r:.60}")


def _in_package(name: str, argument: str) -> Path:
    package, _, inside = name.removeprefix(PACKAGE_PREFIX).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        got = f"'{package}'; pip install {package.replace('_', '-')}"
        raise ArgumentError(argument, "an installed Python package", got)
    return Path(next(iter(spec.submodule_search_locations))) / inside


def refuse_embedded_adapter(place: Any, *, local_files_only: bool = False) -> None:
    """Refuse a model with an adapter beside it: transformers would load that too, and whatever it names."""
    utils = extra("transformers.utils")
    if utils.find_adapter_config_file(place, local_files_only=local_files_only) is not None:
        fix = "load the model that the adapter belongs to, then diabat.huggingface.load_adapter"
        raise ArgumentError("model", "a model without adapter", f"'{place}' with {ADAPTER_CONFIG}; {fix}")


def first_and_others(names: list[str]) -> str:
    """The first of some names, and how many others there are."""
    return names[0] + (f" and {len(names) - 1} others" if len(names) > 1 else "")


def json_of(file: Path, argument: str) -> Any:
    """The content of a JSON file that may come from somebody else; links are followed, as for all of its folder.

    FileNotFoundError if there is none, ArgumentError if it is damaged.
    """
    try:
        return parse_json(read_file(file, _MAX_BYTES, follow=True))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ArgumentError(argument, f"expected JSON in '{file}', got: {error}.") from None


@contextmanager
def quiet(log: Any) -> Iterator[None]:
    """Hide the bars and warnings of loading, ``log`` is ``transformers.utils.logging``."""
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
