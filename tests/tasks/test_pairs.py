"""Sentences with labels: files, what of them is refused, and the pairs of the grammar."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.lab.tasks import DataError, PairOptions, Split
from diabat.lab.tasks.base import PADDING, SEPARATOR, UNKNOWN
from diabat.lab.tasks.pair_rows import CLASSES

PAIRS = [(f"A dog {verb}.", f"a cat {verb}", ("yes", "no")[i % 2]) for i, verb in enumerate("abcdefghij")]


def tsv(folder: Path, rows: Any = PAIRS, header: str = "first\tsecond\tlabel", name: str = "a.tsv") -> str:
    (folder / name).write_text(
        "\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8"
    )
    return str(folder / name)


def jsonl(folder: Path, rows: Any = PAIRS, names: Any = ("first", "second", "label")) -> str:
    lines = [json.dumps(dict(zip(names, row, strict=False))) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "a.jsonl")


def shown(options: PairOptions, split: Split) -> list[tuple[str, str]]:
    """Tokens and label of each sequence."""
    form = options.build().sentences
    assert form is not None
    return [
        (" ".join(form.tokens(row[row != PADDING])), form.classes[int(label)])
        for row, label in zip(split.inputs, split.targets, strict=True)
    ]


def test_a_table_and_lines_of_json_are_the_same_pairs(tmp_path: Path) -> None:
    options = PairOptions(data=tsv(tmp_path), train_fraction=0.8)
    task, same = options.build(), replace(options, data=jsonl(tmp_path)).build()
    for name, split in task.sets.items():
        assert split.fingerprint() == same.sets[name].fingerprint()
    assert {name: len(split) for name, split in task.sets.items()} == {"train": 8, "validation": 2}
    found = shown(options, task.train) + shown(options, task.validation)
    # Words of validation pairs only are not known.
    assert {label for _, label in found} == {"yes", "no"}
    assert ("a dog c . [SEP] a cat c", "yes") in found
    assert sum("[UNK]" in text for text, _ in found) == 2
    assert (task.window, task.metric, task.train.targets.shape) == (8, "accuracy", (8, 1))


def test_the_share_does_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    options = PairOptions(data=tsv(tmp_path), train_fraction=0.5)
    first = sorted(shown(options, options.build().validation))
    tsv(tmp_path, PAIRS[::-1])
    assert sorted(shown(options, options.build().validation)) == first
    assert sorted(shown(options, replace(options, seed=1).build().validation)) != first


def test_second_files_and_a_column_name_the_sets(tmp_path: Path) -> None:
    other = tsv(tmp_path, [("a dog a", "a zebra", "no")], name="b.tsv")
    task = PairOptions(data=tsv(tmp_path), validation=other, test=other).build()
    assert {name: len(split) for name, split in task.sets.items()} == {
        "train": 10,
        "validation": 1,
        "test": 1,
    }
    assert task.validation.inputs[0, 5] == UNKNOWN
    marked = [
        (*row, part) for row, part in zip(PAIRS, ["TRAIN"] * 5 + ["TRIAL"] * 2 + ["TEST"] * 3, strict=True)
    ]
    header = "first\tsecond\tlabel\tSemEval_set"
    task = PairOptions(data=tsv(tmp_path, marked, header)).build()
    assert {name: len(split) for name, split in task.sets.items()} == {"train": 5, "validation": 2, "test": 3}
    with pytest.raises(
        ValueError, match=r"^train_fraction: expected None where validation pairs are named, got 0.5"
    ):
        PairOptions(data=tsv(tmp_path, marked, header), train_fraction=0.5).build()


def test_own_names_and_single_sentences(tmp_path: Path) -> None:
    names: dict[str, Any] = {"first": "premise", "second": "claim", "label": "gold"}
    path = jsonl(tmp_path, [(a, b, int(c == "yes")) for a, b, c in PAIRS], names.values())
    assert PairOptions(data=path, **names).build().num_classes == 2
    single = PairOptions(data=path, sentences=1, first="claim", label="gold").build()
    assert single.window == 3
    assert not bool((single.train.inputs == SEPARATOR).any())


def test_rare_words_are_unknown_and_long_pairs_are_cut(tmp_path: Path) -> None:
    options = PairOptions(data=tsv(tmp_path), min_count=3)
    form = options.build().sentences
    assert form is not None
    assert form.words == (".", "a", "cat", "dog")
    cut = replace(options, window=6, truncate=True)
    assert {text for text, _ in shown(cut, cut.build().train)} >= {
        "a dog [SEP] a cat [UNK]",
        "a dog [SEP] a cat a",
    }


def test_what_is_left_to_the_data_is_stored(tmp_path: Path) -> None:
    options = PairOptions(data=tsv(tmp_path))
    task = options.build()
    stored = options.as_built(task)
    assert (stored.window, stored.classes) == (8, ("no", "yes"))
    tsv(tmp_path, [("zebra a", "a dog", "yes"), ("a dog", "a cat", "yes")])
    again = stored.build()
    assert (again.vocab_size, again.num_classes, again.window) == (task.vocab_size, 2, 8)


ROWS = ["a b\tc\tyes", "a\tb c\tno"]
REFUSED: list[tuple[list[str], dict[str, Any], str]] = [
    (["a\tb"], {}, "line 1 of '.*': expected 'first' or .*, got a, b; name it by task.first."),
    (["first\tb\tlabel", *ROWS], {}, "line 1 of .*: expected 'second' or 'sentence_B', got first, b, label;"),
    (["first\tsecond\tlabel", "a\tb"], {}, "line 2 of '.*': expected 3 cells as the header, got 2."),
    (["first\tsecond\tlabel", *ROWS, "", "a\t \tno"], {}, "line 5 of '.*': expected a text as 'second', got ' '."),
    (["first\tsecond\tlabel", *ROWS], {"label": "gold"}, "line 1 of .*: expected 'gold', got first, second, label; n"),
    (["first\tsecond\tlabel\tpart", "a\tb\tc\td"], {}, "line 2 of .*: expected one of train, .* as 'part', got 'd'"),
    (["first\tsecond\tlabel", *ROWS, "a b\tb c\tyes"], {"window": 4},
     "line 4 of '.*': expected at most 4 tokens, got 5; give task.truncate=true, or a larger task.window."),
    (["first\tsecond\tlabel", "a b\tc\tyes", "a\tc\tyes"], {}, "expected two labels or more, got only 'yes'."),
    (["first\tsecond\tlabel", *ROWS], {"classes": ("no", "maybe")},
     "line 2 of '.*': expected one of the labels no, maybe, got 'yes'."),
    (["first\tsecond\tlabel"], {}, "expected sentences with labels, got none in '.*'."),
    (['{"first": "a"', "{}"], {}, "line 1 of '.*': expected a JSON object, got '{\"first\": \"a\"'."),
    (['{"first": "a", "second": "b", "label": 1}', "[2]"], {}, r"line 2 of '.*': expected a JSON object, got '\[2\]'."),
    (['{"first": "a", "second": "b", "label": 1}', '{"first": "a"}'], {}, "line 2 .* the key 'second', got f"),
    (['{"first": 3, "second": "b", "label": 1}'], {}, "line 1 of '.*': expected a text as 'first', got 3."),
    (['{"first": "a", "second": "b", "label": 0.5}'], {}, "line 1 of '.*': expected a text as 'label', got 0.5."),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "options", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_line_of_another_form_is_refused(
    tmp_path: Path, lines: list[str], options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"^task.data: {message}") as caught:
        PairOptions(data=str(path), **options).build()
    assert "\n" not in str(caught.value)


def test_the_file_of_an_error_is_named(tmp_path: Path) -> None:
    data = tsv(tmp_path)
    other = tsv(tmp_path, [("a dog", "a cat", "maybe")], name="b.tsv")
    with pytest.raises(
        DataError, match=r"^task.validation: line 2 of '.*b.tsv': expected one of the labels no, yes,"
    ):
        PairOptions(data=data, validation=other).build()
    with pytest.raises(DataError, match=r"^task.test: expected a text file in UTF-8, got none at"):
        PairOptions(data=data, test=str(tmp_path / "none")).build()
    only = [(*row, "test") for row in PAIRS]
    with pytest.raises(DataError, match=r"^task.data: expected pairs to train on, got none in"):
        PairOptions(data=tsv(tmp_path, only, "first\tsecond\tlabel\tpart")).build()


def test_pairs_of_the_grammar_are_balanced_different_and_short() -> None:
    task = PairOptions(num_train=300, num_validation=60).build()
    rows = [[tuple(row) for row in split.inputs.tolist()] for split in (task.train, task.validation)]
    assert len({*rows[0], *rows[1]}) == 360
    assert task.window <= 12
    for split in (task.train, task.validation):
        assert [*Counter(split.targets.flatten().tolist()).values()] == [len(split) // 3] * 3
    assert task.sentences is not None
    assert {*task.sentences.classes} == {*CLASSES}
    assert task.parts is not None
    parts = task.parts(task.validation)
    assert {name: int((part.targets >= 0).sum()) for name, part in parts.items()} == dict.fromkeys(
        task.sentences.classes, 20
    )


def holds(sentence: str, world: dict[str, set[str]]) -> bool:
    """Whether a sentence is true; a world says who ran, of two dogs, and who called whom."""
    words = sentence.split()
    if words[-1] != "ran":
        return ("never" in words) != (sentence.replace("never ", "") in world["called"])
    ran = world["ran"]
    return {
        "all": len(ran) == 2,
        "no": not ran,
        "not": len(ran) < 2,
        "some": len(ran) < 2 if "never" in words else bool(ran),
    }[words[0]]


def test_labels_of_the_grammar_follow_from_worlds() -> None:
    """In all worlds of two dogs and two events."""
    worlds: list[dict[str, set[str]]] = []
    events = ["ann called bob", "bob called ann"]
    for ran in (set(), {"rex"}, {"rex", "max"}):
        worlds += [
            {"ran": ran, "called": {e for i, e in enumerate(events) if bits >> i & 1}} for bits in range(4)
        ]
    task, seen = PairOptions(num_train=3600, num_validation=3).build(), 0
    assert task.sentences is not None
    for row, label in zip(task.train.inputs, task.train.targets.flatten().tolist(), strict=True):
        tokens = task.sentences.tokens(row[row != PADDING])
        first, second = (part.strip() for part in " ".join(tokens).split("[SEP]"))
        if not (
            first.endswith("dogs ran")
            or first in events
            or "never called" in first
            or first.endswith("never ran")
        ):
            continue
        if not {*tokens} & {"dogs", "ann"} or not {*tokens} <= {
            *("all", "no", "not", "some", "never", "dogs", "ran", "ann", "bob", "called", "[SEP]")
        }:
            continue
        claims = {holds(second, world) for world in worlds if holds(first, world)}
        expected = "neutral" if len(claims) == 2 else "entailment" if claims == {True} else "contradiction"
        assert task.sentences.classes[label] == expected, (first, second)
        seen += 1
    assert seen > 10


def test_sick_is_read_as_it_is_published() -> None:
    path = Path(os.environ.get("DIABAT_DATA", ".")) / "SICK.txt"
    if not path.exists():
        pytest.skip("SICK.txt is not in $DIABAT_DATA")
    task = PairOptions(data=str(path)).build()
    assert (len(task.train), len(task.validation), task.window) == (8934, 993, 59)
    assert task.sentences is not None
    assert task.sentences.classes == ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")
    targets = torch.cat([split.targets.flatten() for split in task.sets.values()])
    assert targets.bincount().tolist() == [1459, 2857, 5611]
