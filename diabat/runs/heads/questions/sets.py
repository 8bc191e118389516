"""Sets of questions for games on heads: from files, from data sets of the Hugging Face hub, or both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError, check_count, did_you_mean
from diabat.files import digest
from diabat.runs.heads.questions.drawing import draw
from diabat.runs.heads.questions.files import default_value, read_questions
from diabat.runs.heads.questions.rows import load_rows
from diabat.runs.heads.questions.template import Template, read_template, shipped_templates


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one data set, or of several that are pooled.

    Attributes:
        name: Name of the template, of the task, or of the file without its suffix.
        value: The value that these questions are meant for: ``log_odds``, ``option_log_odds``, ``f1``, or
            ``perplexity`` if there is nothing to answer.
        samples: Dicts as ``HeadCoalitions`` takes them.
        source: Where they come from, plain JSON.  A pooled set has the sources of its members under ``sets``.
    """

    name: str
    value: str
    samples: tuple[dict[str, Any], ...]
    source: dict[str, Any]

    def members(self) -> tuple[QuestionSet, ...]:
        """The sets that were pooled, in the order of their samples; the set itself if it was not pooled."""
        if "sets" not in self.source:
            return (self,)
        found, start = [], 0
        for source in self.source["sets"]:
            end = start + source["drawn"]
            found.append(QuestionSet(source["name"], self.value, self.samples[start:end], source))
            start = end
        return tuple(found)


def read_question_sets(
    names: Sequence[str],
    *,
    count: int | None = 300,
    seed: int = 0,
    split: str | None = None,
    local_files_only: bool = False,
) -> list[QuestionSet]:
    """Read one set of questions for each name.

    Args:
        names: Paths of files (``.jsonl`` with questions, ``.yaml`` with a template), names of shipped templates, or
            of tasks.  A task pools the shipped templates of that task.
        count: Questions of each data set, drawn without replacement; None takes all of them, in their order.
        seed: Seed of what is drawn.
        split: A key of ``splits`` in a template, usually ``train`` or ``test``; None is ``train``.  Files of
            questions have no splits, and are read whole.
        local_files_only: Use data sets that are on the disk; do not ask the hub.

    Raises:
        ArgumentError: If a name is unknown, given twice, or a template is not valid.
        DataError: If a file or a data set cannot be read, or a question in it is not valid; the message has the line.
        ImportError: If a template is used and the extra ``hf`` is not installed.
    """
    if isinstance(names, str) or not names:
        raise ArgumentError("names", f"expected at least one file, template or task, got {names!r}.")
    check_count("count", count, optional=True)
    check_count("seed", seed, least=0)
    read = [_read(name, count, seed, split or "train", local_files_only) for name in names]
    seen: set[str] = set()
    for name in (
        member for found in read for member in {found.name, *(part.name for part in found.members())}
    ):
        if name in seen:
            raise ArgumentError("names", f"expected different sets, got '{name}' twice.")
        seen.add(name)
    return read


def _read(name: str, count: int | None, seed: int, split: str, local: bool) -> QuestionSet:
    path = Path(name).expanduser()
    if path.suffix == ".jsonl":
        return _of_file(path, count, seed)
    if path.suffix in (".yaml", ".yml"):
        return _of_template(read_template(path), count, seed, split, local)
    shipped = shipped_templates()
    if name in shipped:
        return _of_template(read_template(shipped[name]), count, seed, split, local)
    templates = [read_template(place) for place in shipped.values()]
    members = [template for template in templates if template.task == name]
    if not members:
        known = (*shipped, *dict.fromkeys(template.task for template in templates if template.task))
        raise ArgumentError(
            "names",
            f"expected a file ending in .jsonl or .yaml, or one of {', '.join(known)}, got "
            f"'{name}'.{did_you_mean(name, known)}",
        )
    return _pooled(name, [_of_template(member, count, seed, split, local) for member in members])


def _of_file(path: Path, count: int | None, seed: int) -> QuestionSet:
    questions = read_questions(path)
    chosen = tuple(draw(questions, count, seed))
    return _set(path.stem, default_value(chosen[0]), chosen, len(questions), seed, {"file": str(path)})


def _of_template(template: Template, count: int | None, seed: int, split: str, local: bool) -> QuestionSet:
    rows = load_rows(template, split, local_files_only=local)
    chosen, left_out = rows.questions(count, seed)
    place = {
        "template": template.name,
        "template_sha256": template.sha256,
        "dataset": dict(template.dataset),
        "split": rows.split,
        "left_out": left_out,
    }
    return _set(template.name, template.value, chosen, len(rows), seed, place)


def _set(
    name: str,
    value: str,
    chosen: tuple[dict[str, Any], ...],
    available: int,
    seed: int,
    place: dict[str, Any],
) -> QuestionSet:
    content = json.dumps(chosen, sort_keys=True, ensure_ascii=False).encode()
    source = {
        "name": name,
        **place,
        "available": available,
        "drawn": len(chosen),
        "seed": seed,
        "sha256": digest(content),
    }
    return QuestionSet(name, value, chosen, source)


def _pooled(name: str, members: list[QuestionSet]) -> QuestionSet:
    values = {member.value for member in members}
    if len(values) > 1:
        raise ArgumentError("names", f"expected templates of one value in '{name}', got {sorted(values)}.")
    samples = tuple(sample for member in members for sample in member.samples)
    source = {"name": name, "sets": [member.source for member in members], "drawn": len(samples)}
    return QuestionSet(name, values.pop(), samples, source)
