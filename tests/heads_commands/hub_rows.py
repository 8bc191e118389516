"""Rows of the data sets of the shipped templates, with the columns and class names that their cards list."""

from __future__ import annotations

from typing import Any

from diabat.extras import extra


def _lettered(*texts: str, letters: str = "ABCDE") -> dict[str, list[str]]:
    return {"text": list(texts), "label": list(letters[: len(texts)])}


_PASSAGE = "The tower is 330 metres tall. It was built in 1889."

# Name of the template: rows, and the classes of the columns that are class labels.
ROWS: dict[str, tuple[list[dict[str, Any]], dict[str, list[str]]]] = {
    "sst2": (
        [
            {"idx": 0, "sentence": "hide new secretions ", "label": 0},
            {"idx": 1, "sentence": "remains utterly satisfied ", "label": 1},
            {"idx": 2, "sentence": "without a label", "label": -1},
        ],
        {"label": ["negative", "positive"]},
    ),
    "sst5": ([{"text": "a stirring film .", "label": 4, "label_text": "very positive"}], {}),
    "mr": ([{"text": "simplistic , silly and tedious .", "label": 0}], {"label": ["neg", "pos"]}),
    "subj": ([{"text": "smart and alert .", "label": 1, "label_text": "subjective"}], {}),
    "agnews": (
        [{"text": "Chips get faster.", "label": 3}],
        {"label": ["World", "Sports", "Business", "Sci/Tech"]},
    ),
    "trec": (
        [
            {"text": text, "coarse_label": k, "fine_label": 0}
            for k, text in enumerate(("What is NASA ?", "What fowl ?", "How ?", "Who ?", "Where ?", "When ?"))
        ],
        {"coarse_label": ["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"]},
    ),
    "cb": (
        [{"premise": "He left.", "hypothesis": "he is gone", "idx": 0, "label": 1}],
        {"label": ["entailment", "contradiction", "neutral"]},
    ),
    "boolq": ([{"question": "is it tall", "answer": False, "passage": _PASSAGE}], {}),
    "hellaswag": (
        [
            {
                "ind": 4,
                "activity_label": "Snow",
                "ctx_a": "A man",
                "ctx_b": "he",
                "ctx": "A man. he",
                "endings": ["runs.", "sits.", "sleeps.", "eats."],
                "label": "2",
            },
            {
                "ind": 5,
                "activity_label": "Snow",
                "ctx_a": "A man",
                "ctx_b": "he",
                "ctx": "Test.",
                "endings": ["runs.", "sits.", "sleeps.", "eats."],
                "label": "",
            },
        ],
        {},
    ),
    "arce": (
        [
            {
                "id": "1",
                "question": "Which is a gas?",
                "choices": _lettered("iron", "air", "salt"),
                "answerKey": "B",
            }
        ],
        {},
    ),
    "arcc": (
        [
            {
                "id": "1",
                "question": "Which is heavy?",
                "choices": _lettered("iron", "air", "salt", "wood", letters="1234"),
                "answerKey": "4",
            },
        ],
        {},
    ),
    "piqa": (
        [{"goal": "Dry a cup", "sol1": "Use a towel.", "sol2": "Use a stone.", "label": 1}],
        {"label": ["0", "1"]},
    ),
    "ob": (
        [{"id": "7", "question_stem": "The sun is", "choices": _lettered("cold", "hot"), "answerKey": "B"}],
        {},
    ),
    "copa": (
        [
            {
                "premise": "My body cast a shadow.",
                "choice1": "The sun was rising.",
                "choice2": "The grass was cut.",
                "question": "cause",
                "idx": 0,
                "label": 0,
            },
        ],
        {"label": ["choice1", "choice2"]},
    ),
    "cqa": (
        [
            {
                "id": "a",
                "question": "Where is a dog?",
                "question_concept": "dog",
                "choices": {"label": list("ABCDE"), "text": ["home", "sea", "sky", "car", "sun"]},
                "answerKey": "A",
            },
        ],
        {},
    ),
    "squad": (
        [
            {
                "id": "1",
                "title": "Tower",
                "context": _PASSAGE,
                "question": "How tall is it?",
                "answers": {"text": ["330 metres"], "answer_start": [13]},
            },
            {
                "id": "2",
                "title": "Tower",
                "context": _PASSAGE,
                "question": "When was it built?",
                "answers": {"text": ["1889", "in 1889"], "answer_start": [45, 42]},
            },
        ],
        {},
    ),
    "squad_v2": (
        [
            {
                "id": "1",
                "title": "Tower",
                "context": _PASSAGE,
                "question": "Who painted it?",
                "answers": {"text": [], "answer_start": []},
            },
            {
                "id": "2",
                "title": "Tower",
                "context": _PASSAGE,
                "question": "How tall is it?",
                "answers": {"text": ["330 metres"], "answer_start": [13]},
            },
        ],
        {},
    ),
}


def data_set(name: str, copies: int = 1) -> Any:
    """The rows as the hub would give them, some number of times over."""
    datasets = extra("datasets")

    rows, classes = ROWS[name]
    loaded = datasets.Dataset.from_list(rows * copies)
    for column, names in classes.items():
        loaded = loaded.cast_column(column, datasets.ClassLabel(names=names))
    return loaded
