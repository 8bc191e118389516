"""SNLI and MNLI through the library ``datasets``, from the Hugging Face hub or its cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diabat.tasks.data import DataError
from diabat.tasks.hub import extra
from diabat.tasks.nli_files import CLASSES, Pairs

SOURCES: Mapping[str, tuple[str, ...]] = {"snli": ("stanfordnlp/snli",), "mnli": ("nyu-mll/glue", "mnli")}
"""Arguments of ``datasets.load_dataset``; classes 0, 1, 2 are entailment, neutral, contradiction in both."""


def read_hub(name: str, sets: Mapping[str, str | None], data: str | None = None) -> dict[str, Pairs]:
    """Load sets of a data set.

    Args:
        name: ``snli`` or ``mnli``.
        sets: Name of the set on the hub by our name; None for one that does not exist.
        data: Folder that ``datasets`` keeps its files in; None for its own.

    Raises:
        DataError: If the data cannot be loaded.
        ImportError: If the extra ``hf`` is not installed.
    """
    datasets = extra("datasets")
    found = {}
    for ours, theirs in sets.items():
        if theirs is None:
            continue
        try:
            loaded = datasets.load_dataset(*SOURCES[name], split=theirs, cache_dir=data)
        # Of several libraries, in many kinds: connection, cache, disk.  The type says enough; the text may hold
        # addresses with access tokens.
        except Exception as error:
            raise DataError(
                f"{name}: cannot load the set '{theirs}' of '{SOURCES[name][0]}' ({type(error).__name__}); check "
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
