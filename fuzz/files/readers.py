"""Read damaged files, and use their content."""

from __future__ import annotations

import json
from pathlib import Path

import diabat
from diabat.attention.heads.interaction.targets import counted_tokens
from diabat.config.loading import load_config, make_config, to_yaml
from diabat.config.yaml_files import parse_yaml
from diabat.ising import Ising
from diabat.problem_files import read_problem
from diabat.runs.heads.questions.files import read_questions
from diabat.runs.heads.questions.template import Skipped, read_template
from diabat.runs.heads.texts import batches_of, read_texts
from diabat.testing.problems import make_problem
from fuzz.api.analytic import check_range
from fuzz.dice import Dice
from fuzz.files import originals
from fuzz.files.mutations import damaged, tampered
from fuzz.outcome import demand, naming

_MOST_SPINS = 14


def problem(dice: Dice, folder: Path) -> None:
    """A problem file of any format: moments in range, or a sentence with its name."""
    formats = originals.problems()
    kind = dice.pick(list(formats))
    content = dice.pick(formats[kind])
    if kind == "json" and dice.chance(0.5):
        content = json.dumps(tampered(dice, json.loads(content))).encode()
    else:
        content = damaged(dice, content, [some for several in formats.values() for some in several])
    path = folder / "some.problem"
    path.write_bytes(content)
    with naming(path.name):
        found = read_problem(path)
    demand(len(found.labels) == found.ising.num_spins, "labels: expected one for each spin")
    _use(found.ising)


def _use(ising: Ising) -> None:
    if ising.num_spins <= _MOST_SPINS:
        check_range(diabat.sampler("exact").moments(ising, correlations=True), ising)


def plan(dice: Dice, folder: Path) -> None:
    """A plan: an anneal with moments in range, or a sentence with its name."""
    content = dice.pick(originals.plans())
    if dice.chance(0.5):
        content = json.dumps(tampered(dice, json.loads(content))).encode()
    else:
        content = damaged(dice, content, originals.plans())
    _anneal(folder / "some-plan.json", content)


def schedule(dice: Dice, folder: Path) -> None:
    """A table of a schedule: an anneal with moments in range, or a sentence with its name."""
    _anneal(
        folder / "some-schedule.csv", damaged(dice, dice.pick(originals.schedules()), originals.schedules())
    )


def _anneal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    options = {} if path.suffix == ".json" else {"annealing_time_ns": 1.0, "protocol": None}
    ising = make_problem((2,), 3)
    sampler = None
    try:
        sampler = diabat.sampler("dqa", schedule=str(path), **options)
        check_range(sampler.moments(ising, correlations=True), ising)
    except (ValueError, FileNotFoundError) as error:
        # What is read is refused with the name of the file; what the engine cannot run, with that of the plan.
        demand(
            sampler is not None or path.stem in str(error), f"refusal without the name '{path.name}': {error}"
        )
        raise


def configuration(dice: Dice, folder: Path) -> None:
    """A configuration: equal to itself after a round trip, or a sentence."""
    content = dice.pick(originals.configurations())
    content = damaged(dice, content, originals.configurations())
    path = folder / "some.yaml"
    path.write_bytes(content)
    config = load_config(path)
    again = make_config(parse_yaml(to_yaml(config), "again"))
    demand(again == config, "round trip: expected an equal configuration")


def analysis(dice: Dice, folder: Path) -> None:
    """An analysis of heads: salient groups of its players, or a sentence with its name."""
    from diabat.runs.heads.analysis.choice import METHODS, Method, calibration_of, choose
    from diabat.runs.heads.analysis.folder import read_analysis

    content = dice.pick(originals.analyses())
    if dice.chance(0.5):
        content = json.dumps(tampered(dice, json.loads(content))).encode()
    else:
        content = damaged(dice, content, originals.analyses())
    path = folder / "analysis.json"
    path.write_bytes(content)
    with naming(path.name):
        found = read_analysis(path)
    choices = choose(found, Method(dice.pick(list(METHODS)), evaluations=8))
    for choice, game in zip(choices, found.games, strict=True):
        demand(
            set(choice.heads) <= {head for group in game.players for head in group},
            "heads: expected some of them",
        )
    calibration_of(choices)


# Columns that the shipped templates read.
_ROW = {
    **dict.fromkeys(
        ("sentence", "text", "premise", "hypothesis", "question", "passage", "ctx", "goal"), "some text"
    ),
    **{"sol1": "so", "sol2": "not so", "choice1": "one", "choice2": "two", "title": "T", "context": "a text"},
    **{
        "label_text": "positive",
        "answer": True,
        "answerKey": "B",
        "question_stem": "what",
        "endings": ["a", "b"],
    },
    **{"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answers": {"text": ["z"]}, "earlier": []},
    **{"label": "1", "coarse_label": "ABBR"},
}


def questions(dice: Dice, folder: Path) -> None:
    """A file of questions: labels among the choices, or a sentence with its name."""
    content = damaged(dice, dice.pick(originals.questions()), originals.questions())
    path = folder / "some.jsonl"
    path.write_bytes(content)
    with naming(path.name):
        found = read_questions(path)
    for question in found:
        demand(("text" in question) != ("input_ids" in question), "question: expected a text or token ids")
        if "choices" in question:
            label = question["label"]
            demand(
                label in question["choices"] or label in range(len(question["choices"])),
                "label: expected a choice",
            )


def template(dice: Dice, folder: Path) -> None:
    """A template: a question of a row with a label among its choices, or a sentence with its name."""
    content = damaged(dice, dice.pick(originals.templates()), originals.templates())
    path = folder / "some.yaml"
    path.write_bytes(content)
    with naming(path.name):
        read = read_template(path)
    try:
        question = read.question(_ROW)
    except Skipped:
        return
    demand("answers" in question or question["label"] in question["choices"], "label: expected a choice")


def texts(dice: Dice, folder: Path) -> None:
    """Texts of a head interaction: batches in which every row has a target, or a sentence with the name of the file."""
    path = folder / "some-texts.jsonl"
    path.write_bytes(damaged(dice, dice.pick(originals.texts()), originals.texts()))
    with naming(path.name):
        found = read_texts(path, None, 64)
    for batch in batches_of(found, 2):
        demand(bool(counted_tokens(batch).any(1).all()), "labels: expected a target in every text")
