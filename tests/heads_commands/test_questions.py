from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diabat.checks import ArgumentError
from diabat.runs.heads import read_question_sets
from diabat.tasks.data import DataError

GOOD = {"text": "Fine film. Sentiment: ", "choices": ["good", "bad"], "label": "good"}


def written(folder: Path, *lines: Any) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_a_file_is_read_as_it_stands(tmp_path: Path) -> None:
    other = {"input_ids": [1, 2], "choices": [3, [4, 5]], "label": 1, "origin": "page 3"}
    (found,) = read_question_sets([written(tmp_path, GOOD, "", other)])
    assert found.name == "mine"
    assert found.value == "log_odds"
    assert found.samples == (GOOD, other)
    assert found.source["file"].endswith("mine.jsonl")
    assert (found.source["available"], found.source["drawn"]) == (2, 2)
    assert json.loads(json.dumps(found.source)) == found.source
    assert found.members() == (found,)


@pytest.mark.parametrize(
    ("line", "value"), [({"text": "Q: x? A:", "answers": ["y"]}, "f1"), ({"input_ids": [1, 2]}, "perplexity")]
)
def test_the_value_follows_from_the_keys(tmp_path: Path, line: dict[str, Any], value: str) -> None:
    (found,) = read_question_sets([written(tmp_path, line)])
    assert found.value == value


def test_questions_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, *({**GOOD, "text": str(k)} for k in range(30)))
    draws = [
        [s["text"] for s in read_question_sets([path], count=10, seed=seed)[0].samples] for seed in (3, 3, 4)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) == 10
    (everything,) = read_question_sets([path], count=None)
    assert [sample["text"] for sample in everything.samples] == [str(k) for k in range(30)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected a JSON object, got not valid JSON"),
        ('{"text": "a", "text": "b"}', "got the key 'text' is given twice"),
        ('{"text": "a", "weight": NaN}', "expected finite numbers"),
        ("[1]", "expected a JSON object, got a list"),
        ({"choices": ["a", "b"], "label": "a"}, "expected either 'text' or 'input_ids', got choices, label"),
        ({**GOOD, "input_ids": [1]}, "expected either 'text' or 'input_ids'"),
        ({**GOOD, "text": " "}, "text: expected a text that is not empty"),
        ({**GOOD, "text": "\ud800"}, "text: expected text, got"),
        (
            {**GOOD, "label": "great"},
            r"label: expected one of the choices \['good', 'bad'\] or its position, got 'great'",
        ),
        ({**GOOD, "label": 2}, "label: expected one of the choices .*, got 2"),
        (
            {"text": "a", "choices": ["x", "y"]},
            "label: expected one of the choices or its position, got none",
        ),
        (
            {"text": "a", "choices": [1, 0], "label": 1},
            "label: expected a label that means one choice, got 1",
        ),
        ({"text": "a", "label": "x"}, "label: expected 'choices' beside it, got none"),
        ({**GOOD, "choices": ["good"]}, "choices: expected a list of two or more"),
        ({**GOOD, "choices": ["good", -1]}, "choices: expected texts or token ids, got -1"),
        ({"input_ids": [1, True]}, "input_ids: expected a list of token ids"),
        ({"text": "a", "answers": "b"}, "answers: expected a list of texts, got 'b'"),
    ],
)
def test_a_line_that_is_not_valid_is_refused_with_its_number(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"mine.jsonl', line 3: .*{message}"):
        read_question_sets([written(tmp_path, GOOD, "", line)])


def test_lines_of_one_file_ask_for_one_value(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="line 2: expected choices and label as in the lines before, got text, answers"
    ):
        read_question_sets([written(tmp_path, GOOD, {"text": "a", "answers": ["b"]})])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing.jsonl': no such file"):
        read_question_sets([str(tmp_path / "missing.jsonl")])
    with pytest.raises(DataError, match=r"expected questions, one JSON object per line, got none"):
        read_question_sets([written(tmp_path, "")])
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(DataError, match=r"expected UTF-8 text, got other bytes at offset 10"):
        read_question_sets([str(tmp_path / "latin.jsonl")])
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder.jsonl': cannot be read"):
        read_question_sets([str(tmp_path / "folder.jsonl")])


def test_names_that_are_unknown_or_given_twice(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"names: expected a file .* got 'trek'\. Did you mean 'trec'"):
        read_question_sets(["trek"])
    with pytest.raises(ArgumentError, match="names: expected at least one"):
        read_question_sets([])
    path = written(tmp_path, GOOD)
    with pytest.raises(ArgumentError, match="names: expected different sets, got 'mine' twice"):
        read_question_sets([path, path])
