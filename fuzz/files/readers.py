"""Read damaged files, and use their content."""

from __future__ import annotations

import json
from pathlib import Path

import diabat
from diabat.config.loading import load_config, make_config, to_yaml
from diabat.config.yaml_files import parse_yaml
from diabat.ising import Ising
from diabat.problem_files import read_problem
from diabat.runs.heads.questions import read_questions
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
    from diabat.runs.heads.analysis import read_analysis
    from diabat.runs.heads.calibration import calibration_of, salient_groups
    from diabat.runs.heads.options import CalibrationOptions

    content = dice.pick(originals.analyses())
    if dice.chance(0.5):
        content = json.dumps(tampered(dice, json.loads(content))).encode()
    else:
        content = damaged(dice, content, originals.analyses())
    path = folder / "analysis.json"
    path.write_bytes(content)
    with naming(path.name):
        found = read_analysis(path)
    options = CalibrationOptions(dice.pick(["max_dividend", "common", "surrogate"]), evaluations=8)
    groups = salient_groups(found, options)
    for group, game in zip(groups, found.games, strict=True):
        demand(
            set(group.heads) <= {head for player in game.players for head in player},
            "heads: expected some of them",
        )
    calibration_of(groups, options)


def questions(dice: Dice, folder: Path) -> None:
    """A file of questions: answers among the choices, or a sentence with its name."""
    content = damaged(dice, dice.pick(originals.questions()), originals.questions())
    path = folder / "some.jsonl"
    path.write_bytes(content)
    with naming(path.name):
        found = read_questions(path)
    for place, question in found.items():
        demand(path.name in place, f"place: expected the name of the file, got {place}")
        if question.get("choices"):
            answer = question["answer"]
            demand(
                answer in question["choices"] or answer in range(len(question["choices"])),
                "answer: expected a choice",
            )
