"""A backend as a sampler of D-Wave's Ocean, and many sampling jobs over two processes.

python examples/ocean_and_jobs.py
"""

from __future__ import annotations

import dimod
import torch

import diabat
from diabat.ising import pack_couplings
from diabat.samplers.executor import SampleJob, map_samples
from diabat.samplers.ocean import OceanSampler


def main() -> None:
    # Ocean minimises +Σ h s + Σ J s s; reads follow exp(-beta · energy), and are not annealed.
    bqm = dimod.BinaryQuadraticModel({"a": 0.5, "b": -0.2}, {("a", "b"): 1.0, ("b", "c"): -1.0}, 0.0, "SPIN")
    sampleset = OceanSampler("exact").sample(bqm, num_reads=1000, beta=2.0, seed=1)
    print(sampleset.aggregate().truncate(3))

    # The same problem at several temperatures, one job each.
    torch.manual_seed(0)
    fields, J = torch.randn(12), pack_couplings(0.3 * torch.randn(66), 12)
    betas = (0.25, 0.5, 1.0, 2.0)
    jobs = [SampleJob(diabat.Ising(b * fields, b * J), num_reads=500, name=f"beta {b}") for b in betas]
    for beta, samples in zip(betas, map_samples("exact", jobs, seed=7, workers=2), strict=True):
        energy = diabat.Ising(fields, J).energy(samples.spins).mean()
        print(f"beta {beta}: mean energy {energy:.3f}, seed {samples.info['seed']}")


if __name__ == "__main__":  # the processes import this file
    main()
