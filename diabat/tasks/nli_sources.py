"""Where the pairs of SICK, SNLI and MNLI come from: their public files, or the Hugging Face hub.

SICK: 9,927 pairs of short descriptive sentences (Marelli et al. 2014, SemEval-2014 task 1).  The public editions
differ.  The one of 9,840 pairs has a column ``SemEval_set`` and a label column ``entailment_label``; the files of the
shared task put together have 9,927 pairs, ``entailment_judgment``, and no split.  For the latter a split of our own is
made: pairs in the order of a hash of their pair_ID, the first 4,439 for training, the next 495 for validation, the
rest for testing.  It is NOT the official one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diabat.extras import extra
from diabat.tasks.data import DataError, locate
from diabat.tasks.nli_files import CLASSES, Columns, Pairs, Row, pairs_of, read_pairs, read_rows

_SICK = "https://zenodo.org/records/2787612"
NUM_TRAIN, NUM_VALIDATION = 4_439, 495
SETS = ("train", "validation", "test")

_SALT = "diabat sick"
_OFFICIAL = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}
_LABELS = ("entailment_label", "entailment_judgment")

Rows = list[tuple[int, Row]]


def read_sick(path: str | Path | None = None) -> dict[str, Pairs]:
    """Read SICK.txt into the sets ``train``, ``validation`` and ``test``.

    Args:
        path: The file or its folder; None looks in DIABAT_DATA and in the user cache.

    Raises:
        DataError: If there is no such file, or it is not SICK.
    """
    found = locate("SICK.txt", path, _SICK)
    needed = ("pair_ID", "sentence_A", "sentence_B")
    rows: Rows = list(read_rows(found, needed))
    if not rows:
        raise DataError(f"'{found}': expected labelled pairs, got none.")
    label = next((name for name in _LABELS if name in rows[0][1]), None)
    if label is None:
        raise DataError(
            f"'{found}': expected the column {' or '.join(_LABELS)}, got {', '.join(rows[0][1])}."
        )
    official = "SemEval_set" in rows[0][1]
    parts = _official_split(found, rows) if official else _own_split(found, rows)
    columns = Columns("sentence_A", "sentence_B", label)
    return {name: pairs_of(found, parts[name], columns) for name in SETS}


def _official_split(path: Path, rows: Rows) -> dict[str, Rows]:
    parts: dict[str, Rows] = {name: [] for name in SETS}
    for line, row in rows:
        name = _OFFICIAL.get(str(row["SemEval_set"]).strip())
        if name is None:
            raise DataError(
                f"'{path}', line {line}: SemEval_set: expected one of {', '.join(_OFFICIAL)}, "
                f"got {row['SemEval_set']!r}."
            )
        parts[name].append((line, row))
    return parts


def _own_split(path: Path, rows: Rows) -> dict[str, Rows]:
    if len(rows) <= NUM_TRAIN + NUM_VALIDATION:
        raise DataError(
            f"'{path}': expected more than {NUM_TRAIN + NUM_VALIDATION} pairs or a column SemEval_set, "
            f"got {len(rows)} pairs without one."
        )
    ordered = sorted(rows, key=lambda row: _place(str(row[1]["pair_ID"])))
    train, validation = NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION
    return {
        "train": ordered[:train],
        "validation": ordered[train:validation],
        "test": ordered[validation:],
    }


def _place(pair_id: str) -> str:
    """Sort key of a pair in the order that is cut into sets; it does not depend on the order of the file."""
    return hashlib.sha256(f"{_SALT} {pair_id.strip()}".encode()).hexdigest()


_ORIGINAL_COLUMNS = Columns("sentence1", "sentence2", "gold_label")
_ORIGINAL_FILES = {"snli": "snli_1.0_{}.jsonl", "mnli": "multinli_1.0_{}.jsonl"}
_ORIGINAL_SETS = {
    "validation": "dev",
    "validation_matched": "dev_matched",
    "validation_mismatched": "dev_mismatched",
}


def read_originals(name: str, sets: Mapping[str, str], data: str | Path | None) -> dict[str, Pairs] | None:
    """Read sets of SNLI or MNLI from the files that their authors publish: JSON lines, ``-`` where annotators disagree.

    Args:
        name: ``snli`` or ``mnli``.
        sets: Name of the set on the hub by our name.
        data: The folder.

    Returns:
        None if the folder has no training file of that name.

    Raises:
        DataError: If a file is missing or cannot be read.
    """
    pattern = _ORIGINAL_FILES[name]
    if data is None or not (Path(data) / pattern.format("train")).is_file():
        return None
    return {
        ours: read_pairs(Path(data) / pattern.format(_ORIGINAL_SETS.get(theirs, theirs)), _ORIGINAL_COLUMNS)
        for ours, theirs in sets.items()
    }


HUB: Mapping[str, tuple[str, ...]] = {"snli": ("stanfordnlp/snli",), "mnli": ("nyu-mll/glue", "mnli")}
"""Arguments of ``datasets.load_dataset``; classes 0, 1, 2 are entailment, neutral, contradiction in both."""


def read_hub(name: str, sets: Mapping[str, str], data: str | None = None) -> dict[str, Pairs]:
    """Load sets of SNLI or MNLI through the library ``datasets``, from the hub or its cache.

    Args:
        name: ``snli`` or ``mnli``.
        sets: Name of the set on the hub by our name.
        data: Folder that ``datasets`` keeps its files in; None for its own.

    Raises:
        DataError: If the data cannot be loaded.
        ImportError: If the extra ``hf`` is not installed.
    """
    datasets = extra("datasets")
    found = {}
    for ours, theirs in sets.items():
        try:
            loaded = datasets.load_dataset(*HUB[name], split=theirs, cache_dir=data)
        # Of several libraries, in many kinds: connection, cache, disk.  The type says enough; the text may hold
        # addresses with access tokens.
        except Exception as error:
            raise DataError(
                f"{name}: cannot load the set '{theirs}' of '{HUB[name][0]}' ({type(error).__name__}); check "
                "the connection to huggingface.co, or use a cache folder by --data or files by task.name=pairs."
            ) from None
        found[ours] = labelled(name, loaded)
    return found


def labelled(name: str, rows: Any) -> Pairs:
    """Keep the pairs of a loaded set whose label is a class; SNLI marks pairs without agreement by -1.

    Raises:
        DataError: If a label is neither -1 nor a class, or no pair is left.
    """
    premises, hypotheses, labels = list(rows["premise"]), list(rows["hypothesis"]), list(rows["label"])
    kept = [i for i, label in enumerate(labels) if label != -1]
    for i in kept:
        if not 0 <= labels[i] < len(CLASSES):
            raise DataError(
                f"{name}: row {i}: label: expected 0 .. {len(CLASSES) - 1} or -1, got {labels[i]}."
            )
    if not kept:
        raise DataError(f"{name}: expected labelled pairs, got none.")
    return Pairs(
        [premises[i] for i in kept],
        [hypotheses[i] for i in kept],
        [int(labels[i]) for i in kept],
        dropped=len(labels) - len(kept),
    )
