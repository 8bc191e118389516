"""Texts: of a user, and Tiny Shakespeare."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import same_weights

from diabat.lab.config import load_config
from diabat.lab.runs import evaluate_run, explain_decoder_run, load_run, run_training
from diabat.lab.runs.build import require_same_run
from diabat.lab.tasks import IGNORED, DataError, ShakespeareOptions, TextOptions
from diabat.lab.tasks.data import DATA_FILES, ENVIRONMENT_VARIABLE
from diabat.lab.training import load_model

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


TEXT = "".join(f"{n} bottles of \u00df\n" for n in range(40))


def write(folder: Path, content: str | bytes, name: str = "a.txt") -> str:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(folder / name)


@pytest.mark.parametrize("begin", ["", "\ufeff"])
def test_any_text_is_split_by_its_position(tmp_path: Path, begin: str) -> None:
    task = TextOptions(window=5, data=write(tmp_path, begin + TEXT), train_fraction=0.75).build()
    assert task.text is not None
    assert task.text.characters == "".join(sorted(set(TEXT)))
    cut = len(TEXT) * 3 // 4
    for split, part, stride in ((task.train, TEXT[:cut], 2), (task.validation, TEXT[cut:], 5)):
        assert len(split) == (len(part) - 6) // stride + 1
        for k, (row, targets) in enumerate(zip(split.inputs, split.targets, strict=True)):
            assert torch.equal(row, task.text.encode(part[stride * k :][:5]))
            assert torch.equal(targets, task.text.encode(part[stride * k + 1 :][:5]))


def test_a_second_text_is_for_validation(tmp_path: Path) -> None:
    paths: dict[str, Any] = {
        "data": write(tmp_path, TEXT),
        "validation": write(tmp_path, TEXT[7:40], "b.txt"),
    }
    task = TextOptions(window=4, characters=200, **paths).build()
    assert len(task.train) == (200 - 5) // 2 + 1
    assert len(task.validation) == (33 - 5) // 4 + 1
    assert task.text is not None
    assert torch.equal(task.validation.inputs[0], task.text.encode(TEXT[7:11]))


def test_symbols_are_those_that_were_named(tmp_path: Path) -> None:
    options = TextOptions(window=2, data=write(tmp_path, "abcabcabcab" * 9))
    stored = options.as_built(options.build())
    assert stored.symbols == "abc"
    (tmp_path / "a.txt").write_text("cbcbcbcbcb" * 9)
    assert stored.build().train.inputs[0].tolist() == [2, 1]
    with pytest.raises(
        DataError, match=r"^task.data: expected the characters of task.symbols only, got 'd' in line 2"
    ):
        replace(stored, data=write(tmp_path, "ab\nd" * 20), symbols="ab\n").build()


@pytest.mark.parametrize(("content", "message"), [
    (b"ab\xff" * 20, "task.data: expected text in UTF-8, got the byte 0xff at offset 2, line 1, of "),
    (b"ab\nc\xe9\n", "task.data: expected text in UTF-8, got the byte 0xe9 at offset 4, line 2, of "),
    ("", "task.data: expected at least 5 characters for training, task.window and the next one, got 0."),
    ("ab" * 20, "task.data: expected at least 5 characters for validation, task.window and the next one, got 4."),
    (None, "task.data: expected a text file in UTF-8, got none at "),
])  # fmt: skip
def test_texts_of_a_user_are_refused_in_a_sentence(tmp_path: Path, content: Any, message: str) -> None:
    """Which says what is wrong, and neither that the file is damaged nor that it should be deleted."""
    path = str(tmp_path / "none") if content is None else write(tmp_path, content)
    second = write(tmp_path, "ab" * 20, "b.txt")
    calls = {message: TextOptions(window=4, data=path)}
    if "for validation" not in message:
        swapped = message.replace("data", "validation").replace("training", "validation")
        calls[swapped] = TextOptions(window=4, data=second, validation=path)
    for said, options in calls.items():
        with pytest.raises(DataError, match=f"^{said}") as caught:
            options.build()
        assert not {"damaged", "delete"} & {*str(caught.value).split()}


def test_characters_that_were_not_trained_on_are_refused(tmp_path: Path) -> None:
    data, other = write(tmp_path, "ab\n" * 20), write(tmp_path, "ab\nb\u00e9b" * 5, "b.txt")
    got = "got '\u00e9' in line 2 of the text for validation; give all that may occur as task.symbols"
    with pytest.raises(DataError, match=f"task.validation: expected the characters of task.data only, {got}"):
        TextOptions(window=2, data=data, validation=other).build()
    assert TextOptions(window=2, data=data, validation=other, symbols="ab\n\u00e9").build().vocab_size == 4


def test_a_run_keeps_its_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, resumed, evaluated on another text with other characters first, and explained."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, TEXT)
    small = ("task.data=a.txt", "task.window=4", "model.embed_dim=8", "model.num_layers=1", "training.seed=2")
    for name, steps in (("whole", (4,)), ("parts", (2, 4))):
        for step in steps:
            config = load_config("text", [*small, f"output={name}", f"training.max_steps={step}"])
            if step == 4 and name == "parts":
                require_same_run(config)
            run_training(config, resume=Path(name).exists(), progress=False)
    assert same_weights(load_model("parts", "latest"), load_model("whole", "latest"))
    stored = load_config("whole").task
    assert isinstance(stored, TextOptions)
    assert stored.symbols == "".join(sorted(set(TEXT)))
    first = evaluate_run(load_run("whole"))
    write(tmp_path, "seltt" * 30, "b.txt")
    other = evaluate_run(load_run("whole", ["task.validation=b.txt"]))
    assert (first.metric, other.count) == ("perplexity", (150 - 5) // 4 * 4 + 4)
    assert first.value != other.value
    assert explain_decoder_run("whole", "bottle").targets[:2] == ("o", "t")
    write(tmp_path, "Zebra" * 30, "b.txt")
    with pytest.raises(
        DataError, match=r"characters of task.symbols only, got 'Z' in line 1 of the text for"
    ):
        load_run("whole", ["task.data=b.txt"])
