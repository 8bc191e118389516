"""A person from statistics: which of five symptoms depend on each other?  A Boltzmann machine of a table.

python examples/fit_table.py        (extra stats)
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch

import diabat

SYMPTOMS = ["cough", "fever", "fatigue", "headache", "rash"]
COUPLED = [("cough", "fever"), ("fever", "fatigue"), ("fatigue", "headache")]


def write_table(path: Path, people: int) -> None:
    """A CSV of 0 and 1, drawn from a known model: the three pairs of COUPLED, and no other."""
    truth, labels = diabat.Ising.from_dict(
        dict.fromkeys(SYMPTOMS, -0.3) | {"rash": -1.0}, dict.fromkeys(COUPLED, 0.4)
    )
    spins = diabat.sampler("exact").sample(truth, people, seed=1).spins
    pd.DataFrame((spins.numpy() + 1) // 2, columns=labels).to_csv(path, index=False)


def main() -> None:
    with TemporaryDirectory() as folder:
        write_table(Path(folder) / "people.csv", 2000)
        table = pd.read_csv(Path(folder) / "people.csv")

        everything = diabat.fit(table)
        chain = diabat.fit(table, pairs=COUPLED)
        nothing = diabat.fit(table, pairs=[])
        for name, fit in (("all pairs", everything), ("three pairs", chain), ("independent", nothing)):
            print(
                f"{name:>12}: log-likelihood {fit.log_likelihood:8.1f}, AIC {fit.aic:.1f}, BIC {fit.bic:.1f}"
            )
        best = min(everything, chain, nothing, key=lambda fit: fit.bic or 0.0)
        assert best is chain

        pairs = chain.to_pandas().dropna(subset="other")
        print(pairs.assign(odds_ratio=np.exp(4 * pairs["value"])).round(3).to_string(index=False))
        assert ((pairs["value"] - 0.4).abs() < 4 * pairs["standard_error"]).all()

        seen = torch.tensor([1, 0, 0, 0, -1])  # somebody coughs and has no rash; 0: not known
        given = diabat.sampler("exact").moments(chain.problem.clamp(seen)).probability
        print("with a cough and no rash:", pd.Series(given.numpy(), SYMPTOMS).round(2).to_dict())
        assert np.isclose(given[0], 1)

        chain.problem.save(Path(folder) / "chain.safetensors")
        again = diabat.Ising.load(Path(folder) / "chain.safetensors")
        assert torch.equal(again.fields, chain.problem.fields)


if __name__ == "__main__":
    main()
