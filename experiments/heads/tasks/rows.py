"""Rows of data sets as the tasks beside this file read them; lm-eval imports it by its path."""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import ClassLabel, Dataset


def named(rows: Dataset) -> Dataset:
    """Give class labels the names of their classes, and leave out rows without a label (-1 on the hub).

    A number may mean another class than one thinks, if a data set orders its classes otherwise.
    """
    for column, feature in rows.features.items():
        if isinstance(feature, ClassLabel):
            names = [None if k is None or k < 0 else feature.names[k] for k in rows[column]]
            rows = rows.remove_columns(column).add_column(column, names)
            rows = rows.filter(lambda row, column=column: row[column] is not None)
    return rows


def with_options(rows: Dataset) -> Dataset:
    """Add ``options`` and ``right``, the position of the answer; leave out rows without, or of equal choices."""
    rows = rows.map(lambda row: {"options": _options(row), "right": _right(row)})
    return rows.filter(lambda row: row["right"] >= 0 and len(set(row["options"])) == len(row["options"]))


def with_earlier(rows: Dataset) -> Dataset:
    """Add ``right``, the possible answers, and ``earlier``, what was asked on the same background before."""
    before: dict[str, str] = defaultdict(str)

    def added(row: Mapping[str, Any]) -> dict[str, Any]:
        right = row["answers"]["text"] or ["unanswerable"]
        earlier = before[row["context"]]
        before[row["context"]] += f"Q: {row['question'].strip()}\n\nA: {right[0]}\n\n"
        return {"right": right, "earlier": earlier}

    return rows.map(added, load_from_cache_file=False)


def answer_scores(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """F1 of the words and exact match of a generated answer, each with the best of the possible answers."""
    return {
        "f1": max(f1(results[0], answer) for answer in doc["right"]),
        "exact_match": max(float(words(results[0]) == words(answer)) for answer in doc["right"]),
    }


def _options(row: Mapping[str, Any]) -> list[str]:
    pairs = (("sol1", "sol2"), ("choice1", "choice2"))
    found = next(([row[k] for k in pair] for pair in pairs if pair[0] in row), None)
    return [text.strip() for text in found or row.get("endings") or row["choices"]["text"]]


def _right(row: Mapping[str, Any]) -> int:
    """Position of the answer; -1 if the data set does not tell."""
    if "answerKey" in row:
        key = row["answerKey"].strip()
        return row["choices"]["label"].index(key) if key else -1
    return -1 if row["label"] in (None, "") else int(row["label"])


def f1(text: str, answer: str) -> float:
    """F1 of the words of a text against those of an answer; 1 if both have none."""
    written, right = words(text), words(answer)
    if not written or not right:
        return float(written == right)
    common = sum((Counter(written) & Counter(right)).values())
    return 2 * common / (len(written) + len(right))


def words(text: str) -> list[str]:
    """Words of the first line of a text, without case, punctuation and articles, as SQuAD counts them."""
    line = text.strip().partition("\n")[0]
    plain = "".join(c for c in line.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()
