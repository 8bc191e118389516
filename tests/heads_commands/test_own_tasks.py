"""HaluEval, PopQA and adapters in lm-eval, offline: the shipped tasks on local rows of the form of the hub's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diabat.runs.heads.evaluation.harness import evaluate_tasks
from diabat.runs.heads.evaluation.suites import shipped_tasks

from .adapters import saved_adapter
from .tiny import decoder, tokenizer

pytest.importorskip("lm_eval", reason="the extra 'eval' is not installed")
# Of lm-eval and what it imports.
pytestmark = pytest.mark.filterwarnings("ignore")


def manager(folder: Path) -> Any:
    """The tasks of a folder alone."""
    kind = importlib.import_module("lm_eval.tasks").TaskManager
    return kind(include_path=str(folder), include_defaults=False)


WORDS = ["the film", "a book", "good plot", "London", "Paris", "Rome", "the river", "long", "short", "dull"]
ROWS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "halueval_qa": (
        "halueval",
        "data",
        [
            {
                "knowledge": "k",
                "question": f"where is {WORDS[k]}",
                "answer": WORDS[-k],
                "hallucination": label,
            }
            for k, label in enumerate(["yes", "no", "no", "yes", "no"])
        ],
    ),
    "halueval_dialogue": (
        "halueval",
        "data",
        [
            {"knowledge": "k", "dialogue_history": WORDS[k], "response": WORDS[-k], "hallucination": label}
            for k, label in enumerate(["no", "no", "yes"])
        ],
    ),
    "halueval_summarization": (
        "halueval",
        "data",
        [
            {"document": WORDS[k], "summary": WORDS[-k], "hallucination": label}
            for k, label in enumerate(["no", "yes"])
        ],
    ),
    "popqa": (
        "popqa",
        "test",
        [
            {"question": f"what is {word} ?", "possible_answers": json.dumps([word, "film"])}
            for word in WORDS[:4]
        ],
    ),
}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """Tasks ``local_...`` that include the shipped ones, on local rows."""
    for task, (place, split, rows) in ROWS.items():
        data = tmp_path / f"{task}.json"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / f"{task}.yaml").write_text(
            f"include: {shipped_tasks() / place / task}.yaml\ntask: local_{task}\ndataset_path: json\n"
            f"dataset_kwargs:\n  data_files: {{{split}: {data}}}\n"
        )
    return tmp_path


def judged(model: Any, prompt: str) -> str:
    """Yes or No, whichever has the larger likelihood behind the prompt."""
    encode = tokenizer()
    scores = []
    for choice in ("Yes", "No"):
        tokens = torch.tensor([encode(f"{prompt} {choice}")["input_ids"]])
        with torch.no_grad():
            logs = model(tokens).logits[0].log_softmax(-1)
        scores.append(float(logs[-2, tokens[0, -1]]))
    return ("Yes", "No")[int(np.argmax(scores))]


def test_shipped_tasks_are_found_without_a_folder_and_read_the_columns_of_the_hub(local: Path) -> None:
    tasks = [f"local_{task}" for task in ROWS]
    model = decoder()
    report = evaluate_tasks(model, tokenizer(), tasks, folder=local)
    rows = {row["task"]: row for row in report.rows}
    assert list(rows) == tasks
    for task, (place, _, examples) in ROWS.items():
        row = rows[f"local_{task}"]
        assert (row["metric"], row["samples"]) == ("acc", len(examples))
        assert row["chance"] == (0.5 if place == "halueval" else None)
    known = manager(shipped_tasks())
    assert set(known.all_tasks) == {*ROWS, "halueval"}


def test_a_judgement_is_right_if_its_label_has_the_larger_likelihood(local: Path) -> None:
    task = manager(local).load(["local_halueval_qa"])["tasks"]["local_halueval_qa"]
    targets = [task.doc_to_target(row) for row in task.eval_docs]
    assert [task.doc_to_choice(None)[target] for target in targets] == ["Yes", "No", "No", "Yes", "No"]
    prompt = task.doc_to_text(task.eval_docs[1])
    assert prompt == "#Question#: where is a book\n#Answer#: dull\n#Your Judgement#:"
    # 'Yes' and 'No' are one unknown word to the tokenizer of the other tests: ties, which are 'Yes'.
    assert {judged(decoder(), prompt)} == {"Yes"}
    report = evaluate_tasks(decoder(), tokenizer(), ["local_halueval_qa"], folder=local)
    assert report.rows[0]["score"] == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("text", "score"), [("it is Paris .", 1), ("paris", 1), ("PARIS", 0), ("Capital city", 1), ("", 0)]
)
def test_an_answer_of_popqa_is_right_if_it_contains_a_possible_one(text: str, score: int) -> None:
    config = manager(shipped_tasks()).task_index["popqa"]
    assert config.yaml_path is not None
    place = config.yaml_path.with_name("matching.py")
    spec = importlib.util.spec_from_file_location("matching", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = {"possible_answers": json.dumps(["Paris", "capital city"])}
    assert module.contains_answer(row, [text]) == {"acc": float(score)}


def test_adapters_are_states_and_differences_are_averaged_over_tasks(local: Path, tmp_path: Path) -> None:
    model = decoder()
    one, two = (saved_adapter(tmp_path / f"adapter-{seed}", seed=seed) for seed in (1, 2))
    tasks = ["local_halueval_qa", "local_popqa"]
    before = {name: p.clone() for name, p in model.named_parameters()}
    report = evaluate_tasks(model, tokenizer(), tasks, folder=local, adapters=[one, two])
    states = ["off", str(one), str(two)]
    assert [row["state"] for row in report.rows] == [*states, *states, *states[1:]]
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    rows = {(row["task"], row["state"]): row for row in report.rows}
    mean = rows["all tasks", str(one)]
    parts = [rows[task, str(one)] for task in tasks]
    assert mean["metric"] == "mean of 2 tasks"
    assert mean["difference"] == pytest.approx(np.mean([part["difference"] for part in parts]))
    expected = sum(part["difference_error"] ** 2 for part in parts) ** 0.5 / 2
    assert mean["difference_error"] == pytest.approx(expected)
    assert report.categories == {"all tasks": tasks}


def test_mc2_is_beside_the_score_of_guessing(tmp_path: Path) -> None:
    """TruthfulQA MC2 computes its own score: chance is the share of true choices, not one over their number."""
    rows = [
        {"question": "what", "mc2_targets": {"choices": WORDS[:4], "labels": [1, 1, 1, 0]}},
        {"question": "where", "mc2_targets": {"choices": WORDS[:2], "labels": [1, 0]}},
    ]
    (tmp_path / "mc2.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "scores.py").write_text(
        "import numpy as np\n\n\ndef mass(doc, results):\n"
        "    p = np.exp([score for score, _ in results])\n"
        "    return {'acc': float((p / p.sum())[np.array(doc['mc2_targets']['labels']) == 1].sum())}\n"
    )
    (tmp_path / "mc2.yaml").write_text(
        f"""
task: own_mc2
dataset_path: json
dataset_kwargs:
  data_files: {{test: {tmp_path / "mc2.json"}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{mc2_targets.choices}}}}"
doc_to_target: 0
process_results: !function scores.mass
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
    )
    (row,) = evaluate_tasks(decoder(), tokenizer(), ["own_mc2"], folder=tmp_path).rows
    assert row["chance"] == pytest.approx((3 / 4 + 1 / 2) / 2)
