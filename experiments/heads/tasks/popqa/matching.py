"""Score of PopQA, which lm-eval imports from beside the YAML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def contains_answer(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """1 if the generated text contains a possible answer, as it is, in lower case or capitalised (Mallen et al.).

    Args:
        doc: A row of the data set: ``possible_answers`` is a list of texts, or JSON of one.
        results: The generated text.
    """
    answers = doc["possible_answers"]
    answers = json.loads(answers) if isinstance(answers, str) else answers
    text = results[0]
    found = any(form in text for answer in answers for form in (answer, answer.lower(), answer.capitalize()))
    return {"acc": float(found)}
