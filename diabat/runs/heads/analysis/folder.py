"""The folder of an analysis: what is analysed (``request.json``), values, and the result (``analysis.json``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from diabat.checks import ArgumentError
from diabat.files import parse_json, read_file, replace_file, to_json
from diabat.runs.heads.analysis.request import Request
from diabat.studies.heads.measure import STRICT, GameFacts

FILE = "analysis.json"
REQUEST = "request.json"
VALUES = "values"
_MAX_BYTES = 1 << 30


class Begun(BaseModel):
    """Content of ``request.json``; ``model`` is the fingerprint of the weights."""

    model_config = STRICT

    format: Literal["diabat-heads-request"] = "diabat-heads-request"
    version: Literal[1] = 1
    request: Request
    model: dict[str, Any]


class Analysis(BaseModel):
    """Content of ``analysis.json``.

    Attributes:
        request: What was analysed.
        model: Fingerprint of the weights, as ``gac.json`` holds it.
        versions: Of the libraries.
        games: One per layer, or one.
    """

    model_config = STRICT

    format: Literal["diabat-heads"] = "diabat-heads"
    version: Literal[1] = 1
    request: Request
    model: dict[str, Any]
    versions: dict[str, str]
    games: tuple[GameFacts, ...]

    @property
    def heading(self) -> str:
        """What was analysed, in two lines."""
        asked = self.request
        names = ", ".join(f"{data.name} ({data.samples})" for data in asked.data)
        calibrated = "" if asked.calibration is None else ", calibrated"
        return (
            f"{asked.model}{calibrated}\n{names}; {asked.options['value']}, absent {asked.options['absent']}"
        )


def read_analysis(path: str | Path) -> Analysis:
    """Read the result of an analysis from its folder or its file.

    Raises:
        ArgumentError: There is none, or the file is none of ours.
        OSError: It cannot be read.
    """
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ArgumentError("analysis", f"expected a finished analysis, got '{path}' without {FILE}.")
    return _read(file, Analysis)


def write_analysis(folder: Path, analysis: Analysis) -> None:
    """Write the result atomically."""
    replace_file(folder / FILE, to_json(analysis.model_dump(mode="json")))


def finished(folder: Path, request: Request) -> Analysis | None:
    """The result of this request if the folder has it; None if the folder is new or the analysis is not finished.

    Raises:
        ArgumentError: The folder belongs to another request, or has other files only.
    """
    if (folder / FILE).exists():
        found = _read(folder / FILE, Analysis)
        _require_same(folder, found.request, request)
        return found
    if (folder / REQUEST).exists():
        _require_same(folder, _read(folder / REQUEST, Begun).request, request)
    elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ArgumentError(
            "folder", f"expected a new folder or one of an analysis, got '{folder}' with other files."
        )
    return None


def begin(folder: Path, request: Request, model: dict[str, Any]) -> None:
    """Note in a folder that :func:`finished` passed what is analysed.

    Raises:
        ArgumentError: An analysis of other weights was begun there.
    """
    if not (folder / REQUEST).exists():
        content = Begun(request=request, model=model)
        replace_file(folder / REQUEST, to_json(content.model_dump(mode="json")))
    elif _read(folder / REQUEST, Begun).model != model:
        raise ArgumentError(
            "folder", f"expected values of this model, got '{folder}' of one with other weights."
        )
    (folder / VALUES).mkdir(exist_ok=True)


def _require_same(folder: Path, found: Request, wanted: Request) -> None:
    other = [name for name in ("model", "calibration") if getattr(found, name) != getattr(wanted, name)]
    if [data.identity for data in found.data] != [data.identity for data in wanted.data]:
        other.insert(0, "data")
    keys = {**found.options, **wanted.options}
    other += [key for key in keys if found.options.get(key) != wanted.options.get(key)]
    if other:
        raise ArgumentError(
            "folder",
            f"expected a new folder or one of this analysis, got '{folder}' with another {', '.join(other)}; "
            "name another folder.",
        )


_Content = TypeVar("_Content", bound=BaseModel)


def _read(path: Path, kind: type[_Content]) -> _Content:
    content = read_file(path, _MAX_BYTES)
    try:
        parse_json(content)  # stricter about keys and numbers than the next
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ArgumentError(
            "analysis", f"expected an analysis of heads in {path}, got {place}: {first['msg']}."
        ) from None
    except ValueError as error:  # also what is no JSON or no text
        raise ArgumentError("analysis", f"expected JSON in {path}, got {error}.") from None
