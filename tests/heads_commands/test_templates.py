from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diabat.checks import ArgumentError
from diabat.config.errors import ConfigError
from diabat.extras import extra
from diabat.runs.heads import read_question_sets
from diabat.runs.heads.questions.template import read_template, shipped_templates
from diabat.tasks.data import DataError

from .hub_rows import ROWS, data_set

TASKS = {
    "classification": {"sst2", "sst5", "mr", "subj", "agnews", "trec", "cb", "boolq"},
    "multiple-choice": {"hellaswag", "arce", "arcc", "piqa", "ob", "copa", "cqa"},
    "question-answering": {"squad", "squad_v2"},
}
LABELS = {
    "sst2": ["negative", "positive"],
    "sst5": ["great"],
    "mr": ["negative"],
    "subj": ["subjective"],
    "agnews": ["Technology"],
    "trec": ["Expression", "Entity", "Description", "Person", "Location", "Number"],
    "cb": ["false"],
    "boolq": ["False"],
    "hellaswag": ["sleeps."],
    "arce": ["air"],
    "arcc": ["wood"],
    "piqa": ["Use a stone."],
    "ob": ["hot"],
    "copa": ["The sun was rising."],
    "cqa": ["home"],
}


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The hub with a few rows of every data set; returns what is loaded of it."""
    datasets = extra("datasets")

    paths = {read_template(path).dataset["path"]: name for name, path in shipped_templates().items()}
    names = {"cb": "cb", "copa": "copa", "ARC-Easy": "arce", "ARC-Challenge": "arcc"}
    loaded: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None = None, *, split: str, revision: str | None = None) -> Any:
        loaded.append((path, name, split, revision))
        return data_set(names.get(name or "", paths[path]))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return loaded


def test_every_data_set_of_the_paper_has_a_template() -> None:
    assert set(shipped_templates()) == set.union(*TASKS.values()) == set(ROWS)
    for name, path in shipped_templates().items():
        assert name in TASKS[str(read_template(path).task)]


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_mapped_by_name(name: str) -> None:
    (found,) = read_question_sets([name])
    assert [sample["label"] for sample in found.samples] == LABELS[name]
    assert all(sample["label"] in sample["choices"] for sample in found.samples)


def test_a_class_keeps_its_name_when_the_data_set_orders_its_classes_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = extra("datasets")

    def load_dataset(*_: Any, **__: Any) -> Any:
        rows = datasets.Dataset.from_list([{"sentence": "fine", "label": 0}])
        return rows.cast_column("label", datasets.ClassLabel(names=["positive", "negative"]))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (found,) = read_question_sets(["sst2"])
    assert found.samples[0]["label"] == "positive"


def test_prompts_are_those_of_the_paper() -> None:
    (sst2,) = read_question_sets(["sst2"])
    assert sst2.samples[0]["text"] == (
        "Classify the sentiment of the user's message into one of the following categories: 'positive' or 'negative'."
        "\n\nSentence: hide new secretions\nSentiment: "
    )
    (arce,) = read_question_sets(["arce"])
    assert arce.samples[0]["text"] == (
        "Generate the correct answer to the following question.\nWhich is a gas?\niron\nair\nsalt\nAnswer: "
    )


def test_questions_on_one_background_follow_each_other() -> None:
    (squad,) = read_question_sets(["squad"])
    first, second = (sample["text"] for sample in squad.samples)
    assert first.endswith("built in 1889.\n\nQ: How tall is it?\n\nA:")
    assert second.endswith("Q: How tall is it?\n\nA: 330 metres\n\nQ: When was it built?\n\nA:")
    assert squad.samples[1]["answers"] == ["1889", "in 1889"]


def test_questions_without_an_answer_are_unanswerable() -> None:
    (found,) = read_question_sets(["squad_v2"])
    assert found.samples[0]["answers"] == ["unanswerable"]
    assert "Q: Who painted it?\n\nA: unanswerable\n\nQ: How" in found.samples[1]["text"]


@pytest.mark.parametrize(
    ("task", "value"), [("classification", "log_odds"), ("multiple-choice", "option_log_odds")]
)
def test_a_task_pools_its_data_sets(task: str, value: str) -> None:
    (found,) = read_question_sets([task], count=1)
    members = found.members()
    assert found.value == value
    assert {member.name for member in members} == TASKS[task]
    assert [sample for member in members for sample in member.samples] == list(found.samples)
    assert all(len(member.samples) == 1 for member in members)


def test_rows_without_label_are_left_out_and_counted() -> None:
    (found,) = read_question_sets(["sst2"])
    assert len(found.samples) == 2
    assert found.source["left_out"] == {"no label": 1}
    (found,) = read_question_sets(["hellaswag"])
    assert found.source["left_out"] == {"no label": 1}


def test_training_split_by_default_and_the_test_split_on_request(hub: list[tuple[Any, ...]]) -> None:
    read_question_sets(["sst2"])
    read_question_sets(["sst2"], split="test")
    read_question_sets(["cb"])
    assert hub == [
        ("stanfordnlp/sst2", None, "train", None),
        ("stanfordnlp/sst2", None, "validation", None),
        ("aps/super_glue", "cb", "train", None),
    ]
    with pytest.raises(
        ArgumentError, match=r"split: expected one of train, test, got 'trian'\. Did you mean 'train'"
    ):
        read_question_sets(["sst2"], split="trian")


def test_the_draw_depends_on_the_seed_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = extra("datasets")

    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *_, **__: datasets.Dataset.from_list(
            [{"text": str(k), "label_text": "objective"} for k in range(50)]
        ),
    )
    draws = [read_question_sets(["subj"], count=20, seed=seed)[0] for seed in (0, 0, 1)]
    texts = [[sample["text"] for sample in found.samples] for found in draws]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == 20
    assert draws[0].source["sha256"] == draws[1].source["sha256"] != draws[2].source["sha256"]
    assert (draws[0].source["available"], draws[0].source["drawn"], draws[0].source["seed"]) == (50, 20, 0)
    (everything,) = read_question_sets(["subj"], count=None)
    assert len(everything.samples) == 50


BASE = """
value: log_odds
dataset: {path: stanfordnlp/sst2}
splits: {train: train}
text: "{{ sentence }}: "
choices: [positive, negative]
label: label
"""


def edited(folder: Path, old: str = "", new: str = "") -> str:
    path = folder / "own.yaml"
    path.write_text(BASE.replace(old, new) if old else BASE + new)
    return str(path)


def test_an_edited_template_is_read_from_its_path(tmp_path: Path) -> None:
    (found,) = read_question_sets([edited(tmp_path)])
    assert found.name == "own"
    assert found.samples[0] == {
        "text": "hide new secretions : ",
        "choices": ["positive", "negative"],
        "label": "negative",
    }


def test_a_data_set_saved_to_disk_needs_no_hub(tmp_path: Path) -> None:
    datasets = extra("datasets")

    datasets.DatasetDict({"train": data_set("sst2")}).save_to_disk(tmp_path / "saved")
    (found,) = read_question_sets([edited(tmp_path, "stanfordnlp/sst2", str(tmp_path / "saved"))])
    assert [sample["label"] for sample in found.samples] == ["negative", "positive"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("choices:", "choises:", r"choises: expected one of .*Did you mean 'choices'\?"),
        ("label: label", "", "label: this key is required with value: log_odds"),
        ("log_odds", "odds", "value: expected one of log_odds, option_log_odds, f1, got 'odds'"),
        ("", "answers: x", "answers: cannot be combined with value: log_odds"),
        ("", "labels: {a: good}", r"labels\.a: expected one of the choices .*, got 'good'"),
        ("{{ sentence }}", "{{ sentence", "text: line 1: "),
        ("label: label", "label: label[", "label: line 1: "),
        (
            "{path: stanfordnlp/sst2}",
            "{path: a/b, trust_remote_code: true}",
            r"dataset\.trust_remote_code: expected one",
        ),
        (
            "stanfordnlp/sst2",
            '"https://x:secret@host/d"',
            "expected the name of a data set .*, got an address",
        ),
        ("{train: train}", "[]", "splits: expected a mapping"),
        ("[positive, negative]", "[positive]", "choices: expected a list of two texts"),
    ],
)
def test_templates_that_are_not_valid_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_question_sets([edited(tmp_path, old, new)])
    assert "own.yaml" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "{{ sentence }}",
            "{{ sentense }}",
            r"row 0: text: expected columns among idx, .*, got: 'sentense'",
        ),
        ("label: label", "label: lable", r"row 0: label: expected columns among .*'lable'"),
        (
            "[positive, negative]",
            "[good, bad]",
            r"row 0: label: expected one of the choices .*, got 'negative'",
        ),
        ("", "labels: {positive: positive}", r"row 0: label: expected one of positive, got 'negative'"),
        ("", "earlier: context", r"earlier: expected one of the columns idx, sentence, label, got 'context'"),
        ("label: label", "label: 1 / 0", r"row 0: label: cannot be computed \(ZeroDivisionError"),
        # The sandbox.
        ("label: label", "label: label.__class__.__mro__", "row 0: label: .*unsafe"),
        ("[positive, negative]", "sentence", "row 0: choices: expected a list of texts"),
    ],
)
def test_rows_that_do_not_suit_a_template_are_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_question_sets([edited(tmp_path, old, new)])


def test_a_data_set_that_cannot_be_loaded_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = extra("datasets")

    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("https://user:secret@host/ is not there")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"cannot load the split .*sst2' \(ConnectionError\)") as e:
        read_question_sets(["sst2"])
    assert "secret" not in str(e.value)


def test_the_hub_is_not_asked_if_only_local_files_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = extra("datasets")

    seen = []

    def load_dataset(*_: Any, **__: Any) -> Any:
        seen.append(datasets.config.HF_HUB_OFFLINE)
        return data_set("sst2")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    read_question_sets(["sst2"], local_files_only=True)
    read_question_sets(["sst2"])
    assert seen == [True, False]
    assert datasets.config.HF_HUB_OFFLINE is False
