from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from diabat.tasks import IGNORED, ShakespeareOptions, Split, Task
from diabat.tasks.data import DATA_FILES, ENVIRONMENT_VARIABLE

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def folder() -> str:
    found = Path(os.environ.get(ENVIRONMENT_VARIABLE) or SHARED)
    if not (found / DATA_FILES["tinyshakespeare"].filename).exists():
        pytest.skip(f"tinyshakespeare.txt is neither in ${ENVIRONMENT_VARIABLE} nor in ../shared/data")
    return str(found)


@pytest.mark.parametrize("window", [1, 4, 7, 8, 16])
def test_protocol(folder: str, window: int) -> None:
    task = ShakespeareOptions(window=window, data=folder).build()
    assert (task.vocab_size, task.num_classes, task.metric, task.window) == (61, 61, "perplexity", window)
    stride = max(1, window // 2)
    assert task.train.inputs.shape == ((90_000 - window - 1) // stride + 1, window)
    assert task.validation.inputs.shape == ((10_000 - window - 1) // window + 1, window)


def test_targets_are_the_next_characters(folder: str) -> None:
    text = (Path(folder) / "tinyshakespeare.txt").read_text()[:100_000]
    symbols = sorted(set(text))
    task = ShakespeareOptions(window=8, data=folder).build()

    def decode(row: torch.Tensor) -> str:
        return "".join(symbols[int(i)] for i in row)

    for index in (0, 1, 1000, len(task.train) - 1):
        assert decode(task.train.inputs[index]) == text[4 * index : 4 * index + 8]
        assert decode(task.train.targets[index]) == text[4 * index + 1 : 4 * index + 9]
    for index in (0, 7, len(task.validation) - 1):
        begin = 90_000 + 8 * index
        assert decode(task.validation.inputs[index]) == text[begin : begin + 8]
        assert decode(task.validation.targets[index]) == text[begin + 1 : begin + 9]


def test_texts_become_the_symbols_of_the_task(folder: str) -> None:
    text = (Path(folder) / "tinyshakespeare.txt").read_text()[:100_000]
    task = ShakespeareOptions(window=8, data=folder).build()
    assert task.text is not None
    assert "".join(task.text.classes) == task.text.characters == "".join(sorted(set(text)))
    symbols = task.text.encode(text[:9])
    assert torch.equal(symbols[:8], task.train.inputs[0])
    assert task.text.targets(symbols[None])[0].tolist() == [*symbols[1:].tolist(), IGNORED]


def test_a_shorter_text_is_cut_the_same_way(folder: str) -> None:
    task = ShakespeareOptions(window=4, characters=1_000, data=folder).build()
    assert len(task.train) == (900 - 5) // 2 + 1
    assert len(task.validation) == (100 - 5) // 4 + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"characters": 89}, "characters: expected an integer >= 90, got 89"),
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShakespeareOptions(**changes)  # type: ignore[arg-type]  # on purpose or by keyword


def test_metric_values() -> None:
    split = Split(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
    perplexity = Task("t", 2, 1, 1, "perplexity", split, split)
    assert perplexity.metric_value(math.log(6.5), 0.3) == pytest.approx(6.5, rel=1e-12)
    assert 1e304 < perplexity.metric_value(1e4, 0.3) < math.inf
    assert Task("t", 2, 1, 1, "accuracy", split, split).metric_value(1.0, 0.3) == 0.3


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64), "inputs: expected int64"),
        (torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64), "inputs: .*N >= 1"),
        (
            torch.zeros(2, 3, dtype=torch.int64),
            torch.zeros(3, 3, dtype=torch.int64),
            r"targets: .*got \[3, 3\]",
        ),
        (torch.zeros(1, 3, dtype=torch.int64), torch.full((1, 3), IGNORED), "targets: .*only ignored"),
    ],
)
def test_malformed_splits_are_refused(inputs: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(inputs, targets)
