"""Rows of a data set of the Hugging Face hub or of the disk, as a template reads them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError, check_choice
from diabat.extras import extra
from diabat.runs.heads.questions.drawing import order
from diabat.runs.heads.questions.template import Skipped, Template
from diabat.tasks.data import DataError


class Rows:
    """The rows of one split.

    Args:
        template: What makes questions of them.
        split: Name of the split in the data set.
        loaded: A ``datasets.Dataset``.
    """

    def __init__(self, template: Template, split: str, loaded: Any) -> None:
        self.template, self.split, self._loaded = template, split, loaded
        # Class labels are numbers; a number that means another class than one thinks is the error that nobody sees.
        kind = extra("datasets").ClassLabel
        self._classes = {
            name: feature.names for name, feature in loaded.features.items() if isinstance(feature, kind)
        }
        self._groups: dict[Any, list[int]] = defaultdict(list)
        if template.earlier is not None:
            if template.earlier not in loaded.features:
                raise self._error(
                    f"earlier: expected one of the columns {', '.join(loaded.features)}, got '{template.earlier}'."
                )
            for position, value in enumerate(loaded[template.earlier]):
                self._groups[value].append(position)

    def __len__(self) -> int:
        return len(self._loaded)

    def questions(self, count: int | None, seed: int) -> tuple[tuple[dict[str, Any], ...], dict[str, int]]:
        """Draw questions, and say how many rows were left out on the way, by reason.

        Raises:
            DataError: If a row does not suit the template; the message has its number, counted from 0.
        """
        chosen: list[dict[str, Any]] = []
        left_out: Counter[str] = Counter()
        for position in order(len(self), count, seed):
            if count is not None and len(chosen) == count:
                break
            try:
                chosen.append(self.template.question(self._row(position)))
            except Skipped as reason:
                left_out[str(reason)] += 1
            except ArgumentError as error:
                raise self._error(f"row {position}: {error}") from None
        if not chosen:
            reasons = ", ".join(f"{number} with {reason}" for reason, number in left_out.items())
            raise self._error(f"expected questions, got none ({reasons or 'no rows'}).")
        return tuple(chosen), dict(left_out)

    def _row(self, position: int) -> dict[str, Any]:
        row = self._named(self._loaded[position])
        if self.template.earlier is not None:
            group = self._groups[row[self.template.earlier]]
            row["earlier"] = [self._named(self._loaded[i]) for i in group if i < position]
        return row

    def _named(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with the names of its classes; None where there is none, which the hub marks by -1."""
        found = dict(row)
        for column, names in self._classes.items():
            number = found[column]
            found[column] = None if number is None or number == -1 else names[number]
        return found

    def _error(self, text: str) -> DataError:
        return DataError(
            f"{self.template.name}, split '{self.split}' of '{self.template.dataset['path']}': {text}"
        )


def load_rows(template: Template, split: str, *, local_files_only: bool = False) -> Rows:
    """Load a split of the data set of a template: from the hub, its cache, or a folder of ``save_to_disk``.

    Args:
        template: The template.
        split: A key of its ``splits``.
        local_files_only: Do not ask the hub.

    Raises:
        ArgumentError: If the template has no such split.
        DataError: If the data set cannot be loaded.
        ImportError: If the extra ``hf`` is not installed.
    """
    check_choice("split", split, template.splits)
    datasets, name = extra("datasets"), template.splits[split]
    options = dict(template.dataset)
    path = options.pop("path")
    with _offline(datasets) if local_files_only else nullcontext():
        try:
            if (Path(path) / "dataset_dict.json").is_file():
                loaded = datasets.load_from_disk(path)[name]
            else:
                loaded = datasets.load_dataset(path, **options, split=name)
        # Of several libraries, in many kinds: connection, cache, disk.  The type says enough; the text may hold
        # addresses with access tokens.
        except Exception as error:
            raise DataError(
                f"{template.name}: cannot load the split '{name}' of '{path}' ({type(error).__name__}); check the "
                "spelling and the connection to huggingface.co, or name a folder of Dataset.save_to_disk in an edited "
                "template (diabat heads templates)."
            ) from None
    return Rows(template, name, loaded)


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Do what HF_HUB_OFFLINE=1 does, for a while; load_dataset has no argument for it."""
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
