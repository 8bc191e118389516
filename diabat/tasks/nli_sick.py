"""SICK: 9,927 pairs of short descriptive sentences (Marelli et al. 2014, SemEval-2014 task 1).

The public editions differ.  The one of 9,840 pairs has a column ``SemEval_set`` and a label column
``entailment_label``; the files of the shared task put together have 9,927 pairs, ``entailment_judgment``, and no
split.  For the latter a split of our own is made: pairs in the order of a hash of their pair_ID, the first
4,439 for training, the next 495 for validation, the rest for testing.  It is NOT the official one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from diabat.tasks.data import DataError, locate
from diabat.tasks.nli_files import Columns, Pairs, Row, pairs_of, read_rows

SOURCE = "https://zenodo.org/records/2787612"
NUM_TRAIN, NUM_VALIDATION = 4_439, 495
SETS = ("train", "validation", "test")

_SALT = "diabat sick"
_OFFICIAL = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}
_LABELS = ("entailment_label", "entailment_judgment")


def read_sick(path: str | Path | None = None) -> dict[str, Pairs]:
    """Read SICK.txt into the sets ``train``, ``validation`` and ``test``.

    Args:
        path: The file or its folder; None looks in DIABAT_DATA and in the user cache.

    Raises:
        DataError: If there is no such file, or it is not SICK.
    """
    found = locate("SICK.txt", path, SOURCE)
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


Rows = list[tuple[int, Row]]


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
    """Where a pair stands in the order that is cut into sets; it does not depend on the order of the file."""
    return hashlib.sha256(f"{_SALT} {pair_id.strip()}".encode()).hexdigest()
