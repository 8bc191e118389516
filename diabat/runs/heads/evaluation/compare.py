"""Evaluate a decoder with and without calibration, and with adapters, on the same questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from diabat.attention.heads.calibration import Calibration
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.huggingface.batches import Batches
from diabat.runs.heads.evaluation.paired import Array, compared, mcnemar, mean_and_error
from diabat.runs.heads.evaluation.scoring import ACCURACY, Scorer, V
from diabat.runs.heads.evaluation.states import ON, RANDOM, State, adapter_states, states_of
from diabat.runs.heads.questions.sets import QuestionSet
from diabat.studies.report import Column, Report, Row

VALUES = ("log_odds", "option_log_odds", "option_log_likelihood", "perplexity", "f1")
ALL_SETS = "all sets"

Progress = Callable[[str, int, int], None]
"""Called with the name of a set and a state, the questions scored and their number."""


def _with_error(key: str, form: str, factor: float = 1) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        error = row.get(f"{key}_error")
        second = "" if error is None else f" ± {factor * error:{form.lstrip('+')}}"
        return format(factor * row[key], form) + second

    return show


@dataclass(frozen=True)
class Evaluation(Report):
    """Scores of a model in several states; see ``docs/heads-commands.md``.

    Attributes:
        model: Its name.
        calibration: The calibration, as in gac.json; None if there is none.
        sources: Where the questions come from.
        controls: Scores of every random group, by set.
        seed: Seed of the random groups.
        adapters: Checksums of the adapters by state.
    """

    model: str = ""
    calibration: dict[str, Any] | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)
    controls: list[Row] = field(default_factory=list)
    seed: int = 0
    adapters: dict[str, str] = field(default_factory=dict)

    labels: ClassVar[tuple[Column, ...]] = (
        Column("set", title="questions"),
        Column(
            "state",
            "off: the model as it is; all heads: no head salient; random (N): N salient groups of equal size; else the "
            "folder of an adapter",
            title="state",
        ),
        Column("samples", "number of questions", title="n"),
    )
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "accuracy",
            "share of questions whose right choice scores highest, or whose answer matches exactly; standard error, or "
            "for random groups the standard deviation over the groups",
            title="accuracy, %",
            show=_with_error("accuracy", ".2f", 100),
        ),
        Column(
            "accuracy_difference",
            "accuracy minus that of off on the same questions, and the standard error of the paired difference",
            title="difference",
            show=_with_error("accuracy_difference", "+.2f", 100),
        ),
        Column("mcnemar_p", "exact two-sided p of McNemar's test", title="p"),
        Column("v", "mean value and its standard error, errors as of accuracy", title="v",
               show=_with_error("v", ".3f")),
        Column(
            "v_difference",
            "v minus that of off on the same questions, and its standard error",
            title="v difference",
            show=_with_error("v_difference", "+.3f"),
        ),
        Column(
            "rank",
            "place of the calibration by v among itself and the random groups; 1 is the largest v",
            title="rank",
            show=lambda row: f"{row['rank']} of {row['ranked']}",
        ),
        Column("rank_accuracy", "the same by accuracy"),
        Column("ranked", "number of calibrations that are ranked"),
        Column("value", "name of the value v"),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Line above the table."""
        adapters = f", {len(self.adapters)} adapters" * bool(self.adapters)
        return f"{self.model}, {_summary(self.calibration)}{adapters}"


def evaluate(
    model: Any,
    tokenizer: Any,
    sets: Sequence[QuestionSet],
    calibration: Calibration | None = None,
    *,
    name: str = "model",
    value: str | None = None,
    all_heads: bool = False,
    random_groups: int = 0,
    seed: int = 0,
    batch_size: int = 16,
    folder: Path | None = None,
    progress: Progress | None = None,
    adapters: Sequence[Path] = (),
) -> Evaluation:
    """Measure accuracy and v of a decoder as it is, calibrated, and calibrated otherwise, on the same questions.

    Adapters are states of their own, each compared with the model without; they are not calibrated.

    Args:
        model: A causal language model of transformers; left in the state in which it was.
        tokenizer: Its tokenizer; None if all questions are token ids.
        sets: The questions.
        calibration: What is compared with the model as it is; None for that alone.
        name: Name of the model in the report.
        value: The value of all sets; None for that which each set is meant for.
        all_heads: Also calibrate all heads of the same layers.
        random_groups: Also calibrate with so many salient groups drawn at random, as large in every layer.
        seed: Seed of the random groups.
        batch_size: Sequences in one forward pass.
        folder: Keeps finished scores; the same evaluation goes on from them.
        progress: Called after every question.
        adapters: Folders of LoRA adapters of this model.

    Raises:
        ArgumentError: If an argument is out of range, a question does not suit the value, the calibration does not
            suit the model or the value, an adapter does not fit the model, or the folder holds scores of something
            else.
        OSError: If the folder cannot be read or written.
    """
    check_count("random_groups", random_groups, least=0)
    check_count("seed", seed, least=0)
    check_count("batch_size", batch_size)
    if value is not None:
        check_choice("value", value, VALUES)
    if not sets:
        raise ArgumentError("sets", "expected at least one set of questions, got none.")
    batches = Batches(model)
    states = states_of(
        calibration, batches.decoder.sites, all_heads=all_heads, random_groups=random_groups, seed=seed
    )
    tuned = adapter_states(model, adapters)
    states += tuned
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    scorers = [
        Scorer(batches, questions, value or questions.value, tokenizer, batch_size, folder)
        for questions in sets
    ]
    for scorer in scorers:
        for state in states:
            scorer.check(state)
    scores = _all_scores(scorers, states, progress)
    rows, controls = _rows(scorers, states, scores, value)
    return Evaluation(
        rows=rows,
        model=name,
        calibration=None if calibration is None else calibration.as_dict(),
        sources=[questions.source for questions in sets],
        controls=controls,
        seed=seed,
        adapters={state.name: str(state.digest) for state in tuned},
    )


def _all_scores(scorers: list[Scorer], states: list[State], progress: Progress | None) -> list[list[Array]]:
    """Scores [questions, measures] of every set in every state."""
    total = sum(scorer.missing(state) for scorer in scorers for state in {s.key: s for s in states}.values())
    done = 0
    found: list[list[Array]] = []
    for scorer in scorers:
        found.append([])
        for state in states:

            def advanced(count: int, what: str = f"{scorer.questions.name}, {state.name}") -> None:
                nonlocal done
                done += count
                if progress is not None:
                    progress(what, done, total)

            found[-1].append(scorer.scores(state, advanced))
    return found


def _rows(
    scorers: list[Scorer], states: list[State], scores: list[list[Array]], value: str | None
) -> tuple[list[Row], list[Row]]:
    """Rows of every data set, of every pool, and of all sets if they have one value; and those of random groups."""
    parts: list[tuple[str, str, tuple[str, ...], list[Array]]] = []
    for scorer, found in zip(scorers, scores, strict=True):
        questions, start = scorer.questions, 0
        kind, members = value or questions.value, questions.members()
        for member in members if len(members) > 1 else ():
            end = start + len(member.samples)
            parts.append((member.name, kind, scorer.measures, [state[start:end] for state in found]))
            start = end
        parts.append((questions.name, kind, scorer.measures, found))
    kinds = {value or scorer.questions.value for scorer in scorers}
    if len(scorers) > 1 and len(kinds) == 1:
        pooled = [np.concatenate(parts_of) for parts_of in zip(*scores, strict=True)]
        parts.append((ALL_SETS, kinds.pop(), scorers[0].measures, pooled))
    rows: list[Row] = []
    controls: list[Row] = []
    for name, kind, measures, found in parts:
        shown, drawn = _of_set({"set": name, "value": kind}, measures, states, found)
        rows += shown
        controls += drawn
    return rows, controls


def _of_set(
    head: Row, measures: tuple[str, ...], states: list[State], found: list[Array]
) -> tuple[list[Row], list[Row]]:
    tables = [dict(zip(measures, scores.T, strict=True)) for scores in found]
    rows = [
        head | {"state": state.name, "samples": len(scores)} | _measured(table, tables[0] if k else None)
        for k, (state, scores, table) in enumerate(zip(states, found, tables, strict=True))
    ]
    fixed = [row for row, state in zip(rows, states, strict=True) if not state.control]
    drawn = [row for row, state in zip(rows, states, strict=True) if state.control]
    if not drawn:
        return fixed, []
    means: Row = head | {"state": f"{RANDOM} ({len(drawn)})", "samples": len(found[0])}
    calibrated = next(row for row in fixed if row["state"] == ON)
    for measure, rank in ((V, "rank"), (ACCURACY, "rank_accuracy")):
        if measure in measures:
            values = np.array([row[measure] for row in drawn])
            means[measure] = float(values.mean())
            means[f"{measure}_error"] = None if len(values) < 2 else float(values.std(ddof=1))
            means[f"{measure}_difference"] = float(values.mean()) - fixed[0][measure]
            calibrated[rank] = 1 + int((values > calibrated[measure]).sum())
    calibrated["ranked"] = 1 + len(drawn)
    return [*fixed, means], drawn


def _measured(table: dict[str, Array], off: dict[str, Array] | None) -> Row:
    row: Row = {}
    for measure, values in table.items():
        row[measure], row[f"{measure}_error"] = mean_and_error(values)
        if off is not None:
            row |= compared(measure, off[measure], values)
    if off is not None and ACCURACY in table:
        row["mcnemar_p"] = mcnemar(off[ACCURACY], table[ACCURACY])
    return row


def _summary(calibration: dict[str, Any] | None) -> str:
    if calibration is None:
        return "no calibration"
    layers = ", ".join(f"{layer}: {heads}" for layer, heads in calibration["salient"].items())
    alpha, beta = calibration["alpha"], calibration["beta"]
    return f"α = {alpha:g}, β = {beta:g}, rows {calibration['rows']}; salient heads by layer {layers}"
