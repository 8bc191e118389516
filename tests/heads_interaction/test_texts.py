from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.attention.heads.interaction.targets import counted_tokens
from diabat.checks import ArgumentError
from diabat.runs.heads.texts import batches_of, read_texts


def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines), encoding="utf-8")
    return path


def test_only_completions_are_targets(saved: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", {"text": "abc ", "completion": "de"}, "", {"text": "fgh"})
    found = read_texts(path, tokenizer(saved), 32)
    assert found[0].tokens == (2, 3, 4, 1, 5, 6)
    assert found[0].labels == (-100, -100, -100, -100, 5, 6)
    assert found[1].labels == found[1].tokens == (7, 8, 9)
    (batch,) = batches_of(found, 4)
    assert batch["labels"].tolist() == [[-100, -100, -100, -100, 5, 6], [7, 8, 9, -100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert counted_tokens(batch).sum() == 2 + 2
    assert [len(b["labels"]) for b in batches_of(found * 2, 3)] == [3, 1]


def test_a_token_across_the_border_is_a_target(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"ab": 0, "cd": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    path = written(tmp_path / "x.jsonl", {"text": "ab c", "completion": "d"})
    (found,) = read_texts(path, PreTrainedTokenizerFast(tokenizer_object=inner), 3)
    assert (found.tokens, found.labels) == ((0, 1), (-100, 1))


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x.jsonl", {"input_ids": [1, 2, 3, 4]}, {"input_ids": [1, 2, 3], "labels": [-100, -100, 3]}
    )
    found = read_texts(path, None, 5, max_length=3)
    assert [t.tokens for t in found] == [(1, 2, 3), (1, 2, 3)]
    assert found[1].labels == (-100, -100, 3)
    assert len(read_texts(path, None, 5, most=1)) == 1
    assert torch.equal(batches_of(found, 2)[0]["input_ids"], torch.tensor([[1, 2, 3], [1, 2, 3]]))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "line 2: expected a JSON object, got not valid JSON"),
        ("[1]", "line 2: expected a JSON object, got a list"),
        ({"input_ids": [1, 2], "text": "a"}, "either 'text' or 'input_ids', got input_ids, text"),
        ({"prompt": "a"}, "either 'text' or 'input_ids', got prompt"),
        ({"text": "a", "labels": [1]}, "labels: cannot be combined with text"),
        ({"input_ids": [1, 2], "completion": "a"}, "completion: cannot be combined with input_ids"),
        ({"input_ids": [1, 9]}, r"token ids in 0 \.\. 4, got 9"),
        ({"input_ids": "12"}, "a list of token ids, got '12'"),
        ({"input_ids": [1, 2], "labels": [1]}, "labels: expected the token ids, or -100"),
        ({"input_ids": [1, 2], "labels": [1, 3]}, "labels: expected the token ids, or -100"),
        ({"input_ids": [1]}, "a target behind the first token"),
        ({"input_ids": [1, 2, 3, 4], "labels": [-100, -100, -100, 4]}, "none among the first 3 tokens"),
        ({"text": "abc"}, "the model has no tokenizer"),
    ],
)
def test_bad_lines(tmp_path: Path, line: Any, match: str) -> None:
    path = written(tmp_path / "x.jsonl", {"input_ids": [1, 2]}, line)
    with pytest.raises(ArgumentError, match=match):
        read_texts(path, None, 5, max_length=3)


def test_bad_files(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_texts(tmp_path / "none.jsonl", None, 5)
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="UTF-8 text, got other bytes at offset 0"):
        read_texts(tmp_path / "x.jsonl", None, 5)
    with pytest.raises(ArgumentError, match="got none in"):
        read_texts(written(tmp_path / "x.jsonl", ""), None, 5)
    with pytest.raises(ArgumentError, match="completion: expected a text, got 3"):
        read_texts(written(tmp_path / "x.jsonl", {"text": "a", "completion": 3}), tokenizer(saved), 32)
