"""Questions of new users: two clicks from the start page, and the section that is reached speaks of what was asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_docs import ROOT, prose

DOCS = ROOT / "docs"
# Question, the link of its answer, words of the section (or of the page, without an anchor).
CLICKS = [
    ("install it without a checkout", "index.md#install", "checkout"),
    ("fast is it on my machine", "results-processors.md#two-kinds-of-processors", "Xeon"),
    ("How many spins", "limitations.md#sizes-and-time", "exponential"),
    ("How long does a step take", "results-speed.md#what-does-it-cost-you", "GPT"),
    ("load my own problem", "problems.md", "YAML"),
    ("I have a QUBO", "problems.md#from-a-qubo", "QUBO"),
    ("sign has a coupling", "conventions.md#spins-and-distribution", "dimod"),
    ("save a problem, a fit", "problems.md#save-and-load", "fit.problem.save"),
    ("fit a Boltzmann machine", "statistics.md#fit-a-table", "standard errors"),
    ("fix spins that I know", "statistics.md#conditional-and-marginal-distributions", "clamp"),
    ("data frame", "statistics.md#tables", "to_pandas"),
    ("state of lowest energy", "tempering.md#annealing-states-of-lowest-energy", "lowest"),
    ("How good is a sampled answer", "backends.md#how-good-is-an-answer", "--compare"),
    ("same numbers again", "conventions.md#seeds", "seed"),
    ("into a Hugging Face model", "huggingface.md", "convert"),
    ("get my model back", "huggingface.md#the-model-as-it-was", "revert"),
    ("Which options", "attention.md#which-layer-which-options", "readout"),
    ("which learning rate", "attention.md#one-rate-for-couplings", "3e-3"),
    ("on my own text", "training.md", "task.data"),
    ("freeze or ablate", "attention.md#freeze-and-ablate-couplings", "hold"),
    ("export a model, with any length", "pytorch.md#export-with-any-length", "dynamic_shapes"),
    ("several GPUs or machines", "pytorch.md#distributed-data-parallel-ddp", "torchrun"),
    ("schedule of my own", "own-anneals.md#a-schedule-of-your-own", "from_csv"),
    ("temperature were my reads", "own-anneals.md#the-temperature-of-your-reads", "fit_betas"),
    ("control noise", "own-anneals.md#control-errors", "noise"),
    ("D-Wave processor cost", "hardware.md#paying-once", "dry_run"),
    ("without an account", "tutorials/dwave.ipynb", "StrictMockQPU"),
    ("IBM or other gate-model", "tutorials/qiskit.ipynb", "Sampler"),
]


def answers() -> dict[str, str]:
    """The answer of each question."""
    found = re.findall(r"^\*\*(.+?)\*\*(.*?)(?=^\*\*|^## |\Z)", prose(DOCS / "questions.md"), re.M | re.S)
    return {question: " ".join(answer.split()) for question, answer in found}


def section(path: Path, anchor: str) -> str:
    """The text below the heading with this anchor, up to the next one of its level; all of it without an anchor."""
    text = path.read_text(encoding="utf-8")
    if ":::{include} ../README.md" in text:
        text = text.replace(":::{include} ../README.md", section(ROOT / "README.md", "install").lstrip("#"))
    if not anchor:
        return text
    for heading in re.finditer(r"^(#+) +(.*)$", text, re.M):
        if re.sub(r"[^\w\- ]", "", heading[2].strip().lower()).replace(" ", "-") == anchor:
            end = re.compile(rf"^#{{1,{len(heading[1])}}} ", re.M).search(text, heading.end())
            return text[heading.start() : end.start() if end else None]
    raise AssertionError(f"{path.name} has no section #{anchor}")


def test_the_start_page_leads_to_the_questions() -> None:
    first = re.findall(r":::\{toctree\}.*?:::", (DOCS / "index.md").read_text(encoding="utf-8"), re.S)[0]
    assert "questions" in first.split()


@pytest.mark.parametrize(("asked", "link", "word"), CLICKS, ids=[click[0] for click in CLICKS])
def test_the_link_of_an_answer_leads_to_it(asked: str, link: str, word: str) -> None:
    (answer,) = [text for question, text in answers().items() if asked in question]
    assert f"]({link})" in answer
    page, _, anchor = link.partition("#")
    assert word in section(DOCS / page, anchor)


def test_every_answer_has_a_link() -> None:
    assert [question for question, answer in answers().items() if "](" not in answer] == []
