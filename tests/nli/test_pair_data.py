from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.extras import extra
from diabat.tasks import (
    DataError,
    MnliOptions,
    PairFileOptions,
    PairTask,
    SickOptions,
    SnliOptions,
    nli_sources,
    pair_task,
)
from diabat.tasks.hub import load_tokenizer, resolve
from diabat.tasks.nli_files import CLASSES, Columns, Pairs, read_pairs
from diabat.tasks.nli_sources import read_sick
from diabat.tasks.nli_tokens import tokenize_pairs

from .tiny_pairs import tiny_task, write_csv

ROWS = [("A dog, it runs.", 'He said "no"', "entailment"), ("b", "c", "CONTRADICTION"), ("d", "e", "neutral")]


def test_csv_and_json_lines_and_tabs_hold_the_same_pairs(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ROWS)
    names = ("premise", "hypothesis", "label")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "a.tsv").write_text("\n".join("\t".join(row) for row in [names, *ROWS]))
    found = [read_pairs(tmp_path / f"a.{suffix}", Columns()) for suffix in ("csv", "jsonl", "tsv")]
    assert found[0] == found[1] == found[2]
    assert list(found[0].labels) == [0, 2, 1]
    assert found[0].hypotheses[0] == 'He said "no"'


def test_columns_and_classes_can_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,gold,more\nx,y,no,1\n")
    pairs = read_pairs(path, Columns("a", "b", "gold"), ("yes", "no"))
    assert (pairs.premises, pairs.hypotheses, pairs.labels) == (["x"], ["y"], [1])


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1e"])
def test_marks_inside_a_sentence_end_no_line(tmp_path: Path, mark: str) -> None:
    row = (f"one{mark}two", "b", "neutral")
    columns = ("premise", "hypothesis", "label")
    write_csv(tmp_path / "a.csv", [row])
    (tmp_path / "b.CSV").write_text(f"{','.join(columns)}\n{','.join(row)}\n", encoding="utf-8")
    (tmp_path / "a.tsv").write_text("\t".join(columns) + "\n" + "\t".join(row) + "\n", encoding="utf-8")
    document = dict(zip(columns, row, strict=True))
    text = json.dumps(document, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_text(f"{text}\r\n{text}\n", encoding="utf-8")
    for name in ("a.csv", "b.CSV", "a.tsv", "a.jsonl"):
        assert read_pairs(tmp_path / name, Columns()).premises[-1] == row[0], name


ORIGINAL = [
    {
        "annotator_labels": ["neutral", "neutral"],
        "gold_label": "neutral",
        "sentence1": "a b",
        "sentence2": "c",
    },
    {"annotator_labels": ["neutral", "entailment"], "gold_label": "-", "sentence1": "d", "sentence2": ""},
    {
        "annotator_labels": ["contradiction"],
        "gold_label": "contradiction",
        "sentence1": "e",
        "sentence2": "f",
    },
]


def write_originals(folder: Path, *names: str) -> None:
    """Files as SNLI's authors publish them, with one pair more without consensus in each."""
    for more, name in enumerate(names):
        rows = [*ORIGINAL, *[ORIGINAL[1]] * more]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_pairs_without_consensus_are_left_out_and_counted(tmp_path: Path) -> None:
    write_originals(tmp_path, "a.jsonl")
    columns = Columns("sentence1", "sentence2", "gold_label")
    pairs = read_pairs(tmp_path / "a.jsonl", columns)
    assert pairs == Pairs(["a b", "e"], ["c", "f"], [1, 2], dropped=1)
    (tmp_path / "b.tsv").write_text("premise\thypothesis\tlabel\nx\ty\t-1\nx\ty\t0\n")
    assert read_pairs(tmp_path / "b.tsv", Columns(), ("0", "1")).dropped == 1
    assert read_pairs(tmp_path / "b.tsv", Columns(), ("0", "-1")).labels == [1, 0]  # a class of that name
    (tmp_path / "b.tsv").write_text("premise\thypothesis\tlabel\nx\ty\t-\n")
    with pytest.raises(DataError, match=r"expected labelled pairs, got none \(1 without agreed label\)\."):
        read_pairs(tmp_path / "b.tsv", Columns())


def test_original_files_of_snli_and_mnli_are_found_in_a_folder(tmp_path: Path, encoder: Path) -> None:
    tokenizer = load_tokenizer(str(encoder))
    write_originals(tmp_path, *(f"snli_1.0_{name}.jsonl" for name in ("train", "dev", "test")))
    write_originals(tmp_path, *(f"multinli_1.0_{name}.jsonl" for name in ("train", "dev_mismatched")))
    snli = pair_task(SnliOptions(data=str(tmp_path)), tokenizer)
    assert snli.test is not None
    assert [len(s) for s in (snli.train, snli.validation, snli.test)] == [2, 2, 2]
    assert snli.dropped == {"train": 1, "validation": 2, "test": 3}
    mnli = pair_task(MnliOptions(data=str(tmp_path), genres="mismatched"), tokenizer)
    assert mnli.dropped == {"train": 1, "validation": 2}
    with pytest.raises(DataError, match=r"multinli_1\.0_dev_matched\.jsonl': cannot be read"):
        pair_task(MnliOptions(data=str(tmp_path)), tokenizer)


def test_classes_may_be_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"premise": "a", "hypothesis": "b", "label": 1}\n')
    assert read_pairs(path, Columns(), ("0", "1")).labels == [1]
    path.write_text('{"premise": "a", "hypothesis": "b", "label": true}\n')
    with pytest.raises(DataError, match="expected one of 0, 1, got True"):
        read_pairs(path, Columns(), ("0", "1"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "premise,label\nx,neutral\n", "expected the columns hypothesis, got premise, label"),
        ("a.csv", "x,y\n1,2\n", "expected the columns premise, hypothesis, label, got x, y"),
        ("a.csv", "premise,hypothesis,label,label\nx,y,neutral,\n", "expected one column label, got 2"),
        (
            "a.csv",
            "label,premise,hypothesis\nneutral,x,y, and z\n",
            "line 2: expected 3 cells as in the first line, got 4",
        ),
        (
            "a.jsonl",
            '{"premise": "a\\ud800", "hypothesis": "b", "label": "neutral"}\n',
            "line 1: premise: expected text, got .*ud800' alone",
        ),
        ("a.jsonl", "[" * 100_000, "line 1: expected a JSON object, got invalid JSON"),
        (
            "a.csv",
            "premise,hypothesis,label\nx,y,neutral\nx,y,maybe\n",
            "line 3: label: expected one of entailment, neutral, contradiction, got 'maybe'",
        ),
        ("a.csv", "premise,hypothesis,label\nx,y\n", "line 2: label: expected one of .*, got None"),
        (
            "a.csv",
            "premise,hypothesis,label\nx,  ,neutral\n",
            "line 2: hypothesis: expected a sentence, got an empty",
        ),
        ("a.csv", "premise,hypothesis,label\n", "expected labelled pairs, got none"),
        ("a.csv", "", "the file is empty"),
        ("a.jsonl", '{"premise": "x"}\n', "line 1: expected the columns hypothesis, label, got premise"),
        ("a.jsonl", "{premise}\n", "line 1: expected a JSON object, got invalid JSON"),
        ("a.jsonl", "[1]\n", "line 1: expected a JSON object, got a list"),
        (
            "a.jsonl",
            '{"premise": 1, "hypothesis": "y", "label": "neutral"}',
            "premise: expected a sentence, got 1",
        ),
        ("a.jsonl", '{"premise": "x", "hypothesis": "y", "label": 7}', "label: expected one of .*, got 7"),
        ("a.parquet", "x", r"expected a file ending in .csv, .tsv, .txt, .jsonl, got '.parquet'"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path / name, Columns())


def test_files_that_are_missing_or_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv': cannot be read \(No such file or directory\)"):
        read_pairs(tmp_path / "a.csv", Columns())
    (tmp_path / "a.csv").write_bytes(b"premise\xff")
    with pytest.raises(DataError, match="expected UTF-8 text, got other bytes at offset 7"):
        read_pairs(tmp_path / "a.csv", Columns())


def write_sick(path: Path, rows: list[dict[str, str]]) -> Path:
    lines = ["\t".join(line) for line in (rows[0], *(row.values() for row in rows))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sick_rows(count: int, **more: str) -> list[dict[str, str]]:
    labels = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
    return [
        {
            "pair_ID": str(i),
            "sentence_A": f"a {i}",
            "sentence_B": '"b',
            "entailment_judgment": labels[i % 3],
            **more,
        }
        for i in range(count)
    ]


def test_our_split_of_sick_depends_on_the_pair_and_not_on_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nli_sources, "NUM_TRAIN", 20)
    monkeypatch.setattr(nli_sources, "NUM_VALIDATION", 5)
    rows = sick_rows(40)
    sets = read_sick(write_sick(tmp_path / "SICK.txt", rows))
    again = read_sick(write_sick(tmp_path / "SICK.txt", rows[::-1]))
    assert sets == again
    assert [len(sets[name]) for name in ("train", "validation", "test")] == [20, 5, 15]
    every = [p for pairs in sets.values() for p in pairs.premises]
    assert sorted(every) == sorted(row["sentence_A"] for row in rows)
    assert all(CLASSES[y] == ("neutral", "entailment", "contradiction")[int(p[2:]) % 3]
               for pairs in sets.values() for p, y in zip(pairs.premises, pairs.labels, strict=True))  # fmt: skip
    # The salted hash of the pair_ID, which must never change: published numbers depend on it.
    assert sets["validation"].premises == FIRST_VALIDATION


FIRST_VALIDATION = ["a 39", "a 38", "a 6", "a 11", "a 34"]


def test_the_official_split_of_sick_is_used_where_the_file_has_it(tmp_path: Path) -> None:
    rows = sick_rows(6)
    for row, name in zip(rows, ["TRAIN", "TEST", "TRIAL", "TRAIN", "TEST", "TEST"], strict=True):
        row["SemEval_set"] = name
        row["entailment_label"] = row.pop("entailment_judgment")
    sets = read_sick(write_sick(tmp_path / "SICK.txt", rows).parent)
    assert {name: list(pairs.premises) for name, pairs in sets.items()} == {
        "train": ["a 0", "a 3"],
        "validation": ["a 2"],
        "test": ["a 1", "a 4", "a 5"],
    }


def test_a_file_that_is_not_sick_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIABAT_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"DIABAT_DATA: expected the file .*SICK.txt, got none; get SICK.txt from"
    ):
        read_sick()
    write_sick(tmp_path / "SICK.txt", sick_rows(10))
    with pytest.raises(DataError, match="expected more than 4934 pairs or a column SemEval_set, got 10"):
        read_sick()
    write_sick(tmp_path / "SICK.txt", [{"pair_ID": "1", "sentence_A": "x", "sentence_B": "y"}])
    with pytest.raises(
        DataError, match="expected the column entailment_label or entailment_judgment, got pair_ID"
    ):
        read_sick()
    write_sick(tmp_path / "SICK.txt", sick_rows(3, SemEval_set="DEV"))
    with pytest.raises(DataError, match="line 2: SemEval_set: expected one of TRAIN, TRIAL, TEST, got 'DEV'"):
        read_sick()


def fake_hub(monkeypatch: pytest.MonkeyPatch, labels: list[int]) -> list[Any]:
    calls: list[Any] = []

    class Library:
        @staticmethod
        def load_dataset(*names: str, split: str, cache_dir: str | None) -> dict[str, list[Any]]:
            calls.append((*names, split, cache_dir))
            return {
                "premise": [f"a {i}" for i in range(len(labels))],
                "hypothesis": ["the dog"] * len(labels),
                "label": labels,
            }

    monkeypatch.setattr(nli_sources, "extra", lambda _: Library)
    return calls


def test_pairs_without_an_agreed_label_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, encoder: Path
) -> None:
    calls = fake_hub(monkeypatch, [2, -1, 0, -1, 1])
    task = pair_task(SnliOptions(num_train=2), load_tokenizer(str(encoder)))
    assert task.dropped == {"train": 2, "validation": 2, "test": 2}
    assert task.train.labels.tolist() == [2, 0]
    assert task.test is not None
    assert task.test.labels.tolist() == [2, 0, 1]
    assert calls[0] == ("stanfordnlp/snli", "train", None)


def test_mnli_has_two_validation_sets_and_no_test_set(monkeypatch: pytest.MonkeyPatch, encoder: Path) -> None:
    calls = fake_hub(monkeypatch, [0, 1, 2])
    task = pair_task(MnliOptions(genres="mismatched", data="there"), load_tokenizer(str(encoder)))
    assert task.test is None
    assert calls == [
        ("nyu-mll/glue", "mnli", "train", "there"),
        ("nyu-mll/glue", "mnli", "validation_mismatched", "there"),
    ]


def test_labels_of_no_class_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, [0, 3])
    with pytest.raises(DataError, match=r"snli: row 1: label: expected 0 \.\. 2 or -1, got 3"):
        nli_sources.read_hub("snli", {"train": "train"})
    fake_hub(monkeypatch, [-1])
    with pytest.raises(DataError, match="snli: expected labelled pairs, got none"):
        nli_sources.read_hub("snli", {"train": "train"})


def test_a_hub_failure_is_one_sentence_without_the_hub_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def load_dataset(*_: str, **__: Any) -> None:
            raise ConnectionError("token hf_secret refused")

    monkeypatch.setattr(nli_sources, "extra", lambda _: Library)
    with pytest.raises(DataError, match=r"cannot load the set 'train' .*ConnectionError") as caught:
        nli_sources.read_hub("snli", {"train": "train"})
    assert "hf_secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"datasets: .*pip install 'diabat\[hf\]'"):
        extra("datasets")


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
    assert split.tokens.dtype == torch.int32
    assert batch.special.sum(1).tolist() == [3, 3]


def test_the_longer_sentence_is_cut_first(encoder: Path) -> None:
    tokenizer = load_tokenizer(str(encoder))
    split = tokenize_pairs(tokenizer, Pairs(["a man is playing the guitar"], ["the dog"], [0]), 8)
    batch, _ = split.batch(torch.tensor([0]))
    words = tokenizer.convert_ids_to_tokens(batch.tokens[0].tolist())
    assert words == ["[CLS]", "a", "man", "is", "[SEP]", "the", "dog", "[SEP]"]


def test_sentences_without_tokens_and_windows_without_room_are_refused(encoder: Path) -> None:
    tokenizer = load_tokenizer(str(encoder))
    with pytest.raises(DataError, match="pair 1: hypothesis: expected at least one token, got none"):
        tokenize_pairs(tokenizer, Pairs(["a", "a"], ["dog", "\x00"], [0, 1]), 20)
    with pytest.raises(ValueError, match="window: expected at least 5 for this tokenizer, got 4"):
        tokenize_pairs(tokenizer, Pairs(["a"], ["dog"], [0]), 4)


def test_a_task_from_files(encoder: Path, data: Path, task: PairTask) -> None:
    assert (len(task.train), len(task.validation), task.num_classes) == (20, 12, 3)
    assert task.test is not None
    assert len(task.test) == 9
    assert tiny_task(encoder, data, test=None, num_train=7).test is None
    assert len(tiny_task(encoder, data, num_train=7).train) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"num_train": 0}, "num_train: expected an integer >= 1 or None, got 0"),
        ({"classes": ("a",)}, "classes: expected two or more different names"),
        ({"classes": ("a", "A")}, "classes: expected two or more different names"),
    ],
)
def test_task_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairFileOptions(**options)


def test_sick_options_are_not_for_other_tasks(encoder: Path) -> None:
    assert SickOptions().class_names == CLASSES
    assert PairFileOptions(classes=("x", "y")).class_names == ("x", "y")


def test_names_of_encoders(tmp_path: Path, encoder: Path) -> None:
    assert resolve("bert-base-uncased") == "bert-base-uncased"
    assert resolve(str(encoder)) == str(encoder)
    with pytest.raises(ValueError, match=r"encoder: expected a folder with config\.json"):
        resolve(str(tmp_path))
    with pytest.raises(
        ValueError, match="encoder: expected the name of a model or a folder, got '/no/such/folder'"
    ):
        resolve("/no/such/folder")
    with pytest.raises(ValueError, match="got an address") as caught:
        resolve("https://me:hf_secret@huggingface.co/x")
    assert "hf_secret" not in str(caught.value)
    with pytest.raises(
        ValueError, match="expected an installed Python package, got 'no_such_thing'; pip install no-such"
    ):
        resolve("package:no_such_thing/model")
    with pytest.raises(
        ValueError, match=r"expected a folder with config\.json in the package, got 'package:json/x'"
    ):
        resolve("package:json/x")


def test_a_folder_inside_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some_weights" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "some_weights" / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("package:some_weights/model") == str(folder)


def test_a_tokenizer_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"tokenizer: expected the name or folder of a tokenizer .*'no/such-model'"
    ):
        load_tokenizer("no/such-model", local_files_only=True)
