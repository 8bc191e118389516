"""SNLI and MNLI in the files that their authors publish: JSON lines, ``-`` where annotators did not agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diabat.tasks.nli_files import Columns, Pairs, read_pairs

_COLUMNS = Columns("sentence1", "sentence2", "gold_label")
_NAMES = {"snli": "snli_1.0_{}.jsonl", "mnli": "multinli_1.0_{}.jsonl"}
_SETS = {"validation": "dev", "validation_matched": "dev_matched", "validation_mismatched": "dev_mismatched"}


def read_originals(
    name: str, sets: Mapping[str, str | None], data: str | Path | None
) -> dict[str, Pairs] | None:
    """Read the sets of a data set from a folder with the original files.

    Args:
        name: ``snli`` or ``mnli``.
        sets: Name of the set on the hub by our name; None for one that does not exist.
        data: The folder.

    Returns:
        None if the folder has no training file of that name.

    Raises:
        DataError: If a file is missing or cannot be read.
    """
    pattern = _NAMES[name]
    if data is None or not (Path(data) / pattern.format("train")).is_file():
        return None
    return {
        ours: read_pairs(Path(data) / pattern.format(_SETS.get(theirs, theirs)), _COLUMNS)
        for ours, theirs in sets.items()
        if theirs is not None
    }
