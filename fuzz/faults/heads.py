"""An analysis of heads, for :mod:`fuzz.faults.repeated`."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.decoders import decoder
from fuzz.faults.repeated import Work

_QUESTIONS = [{"input_ids": [k, 5, 6], "choices": [3, 7], "answer": 3} for k in range(1, 4)]


def analyse(folder: Path, *, resume: bool, weights: int = 0) -> None:
    """Analyse the heads of a small decoder beside the folder, on from where it is."""
    from diabat.runs.heads.analysis import analyse as analyse_heads
    from diabat.runs.heads.options import AnalysisOptions

    model, data = folder.parent / "model", folder.parent / "questions.jsonl"
    if not data.exists():
        decoder().save_pretrained(model)
        data.write_text("".join(json.dumps(question) + "\n" for question in _QUESTIONS))
    # One coalition at a time: its value does not depend on which others are still to be evaluated.
    analyse_heads(str(model), data, folder, AnalysisOptions(batch_size=1, resamples=50))


WORK = Work("heads analyse", analyse, "analysis.json")
