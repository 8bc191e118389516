"""Valid files of every kind that the library reads."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from diabat.circuits import builtin_plan
from diabat.circuits.plan_file import save_plan
from diabat.config.loading import load_config, shipped_configs, to_plain, to_yaml

YAML = (
    "fields: [0.5, -1.0, 0.0]\ncouplings: [[0, 1, 0.8], [1, 2, -0.3]]\nvisible: [true, true, false]\nbeta: 1.0\n",
    "fields: [1e-3, 2, 3]\ncouplings: [[0, 1, 2], [1, 0, 3], [2, 3, 0]]\n",
    "# a comment\nfields:\n  - 0.1\n  - 0.2\n  - 0.3\n  - 0.4\nthree_body:\n  - [0, 1, 2, 0.1]\n  - [1, 2, 3, -0.5]\n",
    '{fields: [0.5], beta: 2.0}\n',
)  # fmt: skip
COO = (
    "# vartype=SPIN\n0 0 -1.000000\n0 1 0.500000\n1 1 0.250000\n1 2 -0.750000\n2 2 0.500000\n",
    "# vartype=BINARY\n0 0 1e-3\n0 7 +2.5E-1\n3 7 -1\n",
)


@cache
def problems() -> dict[str, tuple[bytes, ...]]:
    """Contents of problem files by their format."""
    import dimod

    models = [
        dimod.BinaryQuadraticModel({0: -1.0, 1: 0.25, 2: 0.5}, {(0, 1): 0.5, (1, 2): -0.75}, 0.0, "SPIN"),
        dimod.BinaryQuadraticModel({"a": 1.0, ("x", 1): 2.0}, {("a", ("x", 1)): -1.0}, 1.5, "BINARY"),
        dimod.BinaryQuadraticModel(
            {j: 0.1 * j for j in range(6)}, {(j, j + 1): 1.0 for j in range(5)}, 0, "SPIN"
        ),
    ]
    return {
        "yaml": tuple(text.encode() for text in YAML),
        "coo": tuple(text.encode() for text in COO),
        "json": tuple(json.dumps(model.to_serializable()).encode() for model in models),
    }


@cache
def plans() -> tuple[bytes, ...]:
    """Plans of four and eight layers."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("boltzmann-4", "boltzmann-8"):
            save_plan(Path(folder) / name, *builtin_plan(name))
            found.append((Path(folder) / name).read_bytes())
    return tuple(found)


@cache
def schedules() -> tuple[bytes, ...]:
    """Schedules as tables: plain, and with solver and protocol."""
    rows = [(k / 12, 6 * (1 - k / 12) ** 3, 8 * (k / 12) ** 2) for k in range(13)]
    plain = "s,A_GHz,B_GHz\n" + "".join(f"{s:.6f},{a:.6f},{b:.6f}\n" for s, a, b in rows)
    named = "# made up\nsolver,protocol,s,A_GHz,B_GHz\n"
    named += "".join(f"mine,{p},{s:.4g},{a:.4g},{b:.4g}\n" for p in ("fast", "standard") for s, a, b in rows)
    return plain.encode(), named.encode()


@cache
def configurations() -> tuple[bytes, ...]:
    """Shipped configurations as they are, resolved, and as JSON."""
    found = [path.read_bytes() for path in shipped_configs().values()]
    for name in ("demo-dqa", "fidelity", "sick-neurogame"):
        config = load_config(name)
        found += [to_yaml(config).encode(), json.dumps(to_plain(config), indent=1).encode()]
    return tuple(found)


@cache
def analyses() -> tuple[bytes, ...]:
    """Analyses of heads: all coalitions of two layers, and those of at most two players of a joint game."""
    import torch

    from diabat.attention.heads import DividendSummary
    from diabat.files import to_json
    from diabat.runs.heads.analysis import Analysis
    from diabat.runs.heads.options import AnalysisOptions

    class Game:
        """Random values of three players."""

        num_players = 3

        def __init__(self, layers: tuple[int, ...]) -> None:
            self.groups = tuple(((layers[k % len(layers)], 2 * k), (layers[0], 2 * k + 1)) for k in range(3))

        def sample_table(self) -> torch.Tensor:
            return torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def sample_values(self, masks: torch.Tensor) -> torch.Tensor:
            return self.sample_table()[:, (masks.long() << torch.arange(3)).sum(-1)]

    found = []
    for layers, size in (([(0,), (1,)], None), ([(0, 2)], 2)):
        games = tuple(DividendSummary.of(Game(of), max_size=size, resamples=20) for of in layers)  # type: ignore[arg-type]
        facts = {
            "model": "tiny",
            "digest": {"dtype": "x"},
            "data": "q.jsonl",
            "value": "log_odds",
            "versions": {},
        }
        analysis = Analysis(**facts, options=AnalysisOptions(max_size=size), games=games)  # type: ignore[arg-type]
        found.append(to_json(analysis.model_dump(mode="json")))
    return tuple(found)


@cache
def questions() -> tuple[bytes, ...]:
    """Files of questions: with choices, of token ids, with answers."""
    films = [
        {"prompt": f"Review: film {k}. Sentiment: ", "choices": ["good", "bad"], "answer": "good"}
        for k in range(3)
    ]
    ids = [{"input_ids": [k, 5, 6], "choices": [3, [4, 7]], "answer": 1, "origin": None} for k in range(3)]
    answers = [
        {"prompt": "Q: where? A:", "answer": ["Paris", "in Paris"]},
        {"messages": [{"role": "user", "content": "é?"}], "answer": "x"},
    ]
    return tuple("".join(json.dumps(row) + "\n" for row in rows).encode() for rows in (films, ids, answers))
