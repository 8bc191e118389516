"""Backend ``dimod``: any dimod sampler or composite, including D-Wave processors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from diabat.checks import ArgumentError, check_count, check_number
from diabat.circuits import Betas
from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.base import Sampler
from diabat.samplers.call_checks import require_room
from diabat.samplers.capabilities import Capabilities
from diabat.samplers.diagnostics import Watched
from diabat.samplers.dimod import problems, submission, temperature
from diabat.samplers.dimod.budget import Budget, BudgetError, DryRun
from diabat.samplers.dimod.problems import FloatArray, Packed
from diabat.samplers.dimod.reads import AnswerCache
from diabat.samplers.dimod.submission import DimodLike, Placing, SubmissionError, Submitter, Work

__all__ = ["BudgetError", "DimodSampler", "SubmissionError"]

DEFAULT_SAMPLER = "dwave.samplers:SimulatedAnnealingSampler"
_DEFAULT_PARAMETERS: dict[str, Any] = {"beta_schedule_type": "custom", "beta_schedule": [1.0] * 100}


class DimodSampler(Sampler):
    r"""Reads of a dimod sampler, programmed with h/beta_h and J/beta_J.

    A device at inverse temperatures (beta_h, beta_J) then follows P(s) ∝ exp(scale · (Σ h s + Σ J s s)).  The
    temperature must be declared (``beta``): a sampler that anneals to another temperature solves another problem.
    The law is Boltzmann only if you declare it (``law``); otherwise it is ``diabatic``, and only first-order agreement
    is expected.

    Problems are submitted one after the other; with ``together``, or tiled over a chip by a
    :class:`diabat.samplers.dimod.tiled.TiledComposite`, many at a time.  This is the only backend with a Python loop
    over problems.  Rows with ``num_occurrences`` are expanded: there is one row
    per read, and exactly the requested number of reads.

    Args:
        sampler: A dimod sampler or composite, or its ``module:name``.  None is dwave's simulated annealer at constant
            beta = 1 for 100 sweeps, with law ``boltzmann``.
        options: Keywords of its constructor, if ``sampler`` is a name; no tokens.
        parameters: Keywords of its ``sample``.
        beta: Inverse temperature at which it samples programmed values: a number, (beta_h, beta_J), or ``estimate``
            (by maximum pseudo-likelihood on 16 problems of the spins of a tile, or of 6, before the first answer; also
            fits every answer).
        law: ``boltzmann`` if the answers follow it at that temperature; None for another or unknown law, such as that
            of an optimiser.
        scale: Factor of the programmed values, which changes the effective temperature: None is 1, ``fit`` the
            largest that keeps the values of a call in range.
        num_reads: Reads behind ``moments``.
        reads_per_call: Largest number of reads of one submission; None uses the limit that the sampler reports.
        together: Problems in one submission, as independent parts of one model; None is 1, or with a
            :class:`diabat.samplers.dimod.tiled.TiledComposite` as many as its tiles hold.
        cache_dir: Folder for answers; the same call with the same seed is then answered from it.
        max_reads: Largest total number of submitted reads: of this object, or with a ``cache_dir`` of all runs and
            processes that use that folder, counted in its ``spent.json``.  Submissions that timed out, or were
            running when a run ended, count with their estimate, because they may have been answered.
        max_qpu_seconds: Largest total processor access time, estimated before and counted after each submission.
        retries: Further attempts after a network failure.
        retry_wait_s: Wait before the first retry in seconds; doubled for each further one.

    Attributes:
        budget: The use so far, and its limits.

    Raises:
        ValueError: If an option is invalid or the temperature is not declared; the message names it.
        TypeError: If an option has the wrong type, or ``sample`` has no such parameter.
    """

    name = "dimod"

    # str comes first in the union: a configuration reports the first member.
    def __init__(
        self,
        sampler: str | DimodLike | None = None,
        *,
        options: dict[str, Any] | None = None,
        parameters: dict[str, Any] | None = None,
        beta: Literal["estimate"] | float | tuple[float, float] | None = None,
        law: Literal["boltzmann"] | None = None,
        scale: Literal["fit"] | float | None = None,
        num_reads: int = 1000,
        reads_per_call: int | None = None,
        together: int | None = None,
        cache_dir: str | Path | None = None,
        max_reads: int | None = None,
        max_qpu_seconds: float | None = None,
        retries: int = 5,
        retry_wait_s: float = 1.0,
    ) -> None:
        if sampler is None:
            for name, value in {"options": options, "parameters": parameters, "beta": beta}.items():
                if value is not None:
                    raise ArgumentError("sampler", f"a dimod sampler or its name with {name}", "None")
            sampler, parameters, beta, law = DEFAULT_SAMPLER, _DEFAULT_PARAMETERS, 1.0, "boltzmann"
        self.num_reads = check_count("num_reads", num_reads)
        self.together = check_count("together", together, optional=True)
        self._reads_per_call = check_count("reads_per_call", reads_per_call, optional=True)
        max_reads = check_count("max_reads", max_reads, least=0, optional=True)
        retries = check_count("retries", retries, least=0)
        check_number("max_qpu_seconds", max_qpu_seconds, "[0, inf)", optional=True)
        check_number("retry_wait_s", retry_wait_s, "[0, inf)")
        if cache_dir is not None and not isinstance(cache_dir, str | Path):
            raise ArgumentError("cache_dir", "a path or None", f"{cache_dir!r}")
        self._beta, self._scale = temperature.check_beta(beta), temperature.check_scale(scale)
        temperature.check_law(law, self._scale, self._beta)
        self._law: Literal["boltzmann", "diabatic"] = law or "diabatic"
        folder = None if cache_dir is None else Path(cache_dir)
        self._cache = None if folder is None else AnswerCache(folder)
        self.budget = Budget(max_reads, max_qpu_seconds, folder and folder / "spent.json")
        where = sampler, options, parameters or {}
        self._new_submitter = partial(Submitter, *where, self._cache, self.budget, retries, retry_wait_s)
        # A composite that tells what it programs.
        self._tiled: Placing | None = None
        if sampler is not DEFAULT_SAMPLER:  # which is imported on first use
            self._tiled = self.target if isinstance(self.target, Placing) else None

    @property
    def capabilities(self) -> Capabilities:
        """Fields and couplings with the declared law; reads only."""
        limit = self._tiled.spins if self._tiled else None
        return Capabilities(law=self._law, edges=True, max_spins=limit)

    @property
    def target(self) -> DimodLike:
        """The dimod sampler."""
        return self._submitter.sampler

    @cached_property
    def betas(self) -> Betas:
        """Inverse temperatures by which h and J are divided; with ``estimate`` the first access estimates them."""
        return self._find_betas([])

    def _find_betas(self, call: Sequence[Work]) -> Betas:
        """Find ``betas``; the budget must hold an estimate together with the call that it is for."""
        if isinstance(self._beta, Betas):
            return self._beta
        one = self._round()

        def draw(ising: Ising, betas: Betas, left: int) -> Samples:
            return self._draw(ising, betas, temperature.ESTIMATE_READS, 0, [*one * left, *call])[0]

        return temperature.estimate(draw, self._references)

    @property
    def _unknown(self) -> bool:
        """Whether the temperature is still to be estimated."""
        return self._beta == "estimate" and "betas" not in vars(self)

    @property
    def _references(self) -> Ising:
        """Problems of the estimate, in tiles of the problems' size: longer chains anneal more slowly."""
        return temperature.reference_problems(spins=max(2, self.capabilities.max_spins or 6))

    def _round(self) -> list[Work]:
        """Submissions of one round of the estimate, with values that are not known yet."""
        return self._works(self._references, None, temperature.ESTIMATE_READS, 0)

    def dry_run(self, ising: Ising, num_reads: int, *, seed: int = 0) -> DryRun:
        """Estimate the cost of :meth:`sample` without submitting anything.

        Before the estimate of ``beta="estimate"``, its submissions count too, and values are not compared with ranges.
        An estimate that the cache answers is made.

        Args:
            ising: The problems.
            num_reads: Reads per problem.
            seed: Seed of the call, which is part of the cache key.
        """
        num_reads = check_count("num_reads", num_reads)
        self._require(ising)
        require_room(ising, num_reads)
        if self._unknown and self._cache is not None:
            free = copy(self)
            free._submitter = copy(self._submitter)
            free._submitter.budget = Budget(max_reads=0)
            with suppress(BudgetError):
                self.betas = free.betas
        rounds = temperature.ROUNDS * self._round() if self._unknown else []
        works = self._works(ising.detach(), None if self._unknown else self.betas, num_reads, seed)
        scale = None if rounds and self._scale == "fit" else works[0].factor if works else 1.0
        return self._submitter.dry_run(works, ising.num_problems, rounds, scale)

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Chains and ancillas that do not hold, and temperatures that are not those asked for."""
        weak = "use stronger qubit chains (chain_strength), or shorter ones"
        free, fitted = "use fields='direct', in an anneal with h", "declare or estimate beta anew"
        return (
            Watched("chain_break_fraction.mean", "chain breaks, mean", most=0.05, advice=weak),
            Watched("chain_break_fraction.max", "chain breaks, most broken chain"),
            Watched("ancilla_flips", "ancilla flips", most=0.05, advice=free),
            Watched("beta_fit.beta_h", "fitted beta of the fields", 0.7, 1.4, fitted),
            Watched("beta_fit.beta_J", "fitted beta of couplings", 0.7, 1.4, fitted),
        )

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        if self._unknown:
            self.betas = self._find_betas(self._works(ising, None, num_reads, seed))
        samples, facts = self._draw(ising, self.betas, num_reads, seed)
        if self._beta == "estimate":
            facts["beta_fit"] = temperature.fit_report(ising, samples)
        return Samples(samples.spins, samples.visible, info=facts)

    def _draw(
        self, ising: Ising, betas: Betas, num_reads: int, seed: int, later: Sequence[Work] = ()
    ) -> tuple[Samples, dict[str, Any]]:
        out = torch.full((num_reads, ising.num_problems, ising.num_spins), -1, dtype=torch.int8)
        spins, works = out.numpy(), self._works(ising, betas, num_reads, seed)
        cached = answered = 0
        times: list[float] = []
        fractions: dict[str, list[FloatArray]] = {}
        for work, reads, stored in self._submitter.answers(works, later):
            start = work.part * works[0].reads
            spins[start : start + work.reads, work.packed.rows, work.packed.spins] = reads.spins
            cached, answered = cached + stored, answered + reads.rows
            if reads.access_us is not None and not stored:
                times.append(reads.access_us)
            for name, values in reads.fractions.items():
                fractions.setdefault(name, []).append(values)
        qubits, longest = problems.placed([work.packed for work in works])
        facts: dict[str, Any] = {
            "submissions": len(works),
            "cached_submissions": cached,
            "reads_answered": answered,
            "reads_kept": sum(work.reads for work in works),
            "qubits": qubits,
            "longest_chain": longest,
            "qpu_access_s": sum(times) / 1e6 if times else None,
        }
        if "chain_break_fraction" in fractions:
            broken = np.concatenate(fractions["chain_break_fraction"])
            facts["chain_break_fraction"] = {"mean": float(broken.mean()), "max": float(broken.max())}
        if "ancilla_flips" in fractions:
            facts["ancilla_flips"] = float(np.concatenate(fractions["ancilla_flips"]).mean())
        out = out.reshape(num_reads, *ising.fields.shape).to(ising.fields.device)
        facts |= self._facts(betas, works[0].factor if works else 1.0)
        return Samples(out, ising.visible_mask), facts

    def _works(self, ising: Ising, betas: Betas | None, num_reads: int, seed: int) -> list[Work]:
        """Program, pack, scale and check; nothing is submitted.  Without betas only the values are wrong."""
        packed = self._packed(ising, betas or Betas(1.0, 1.0))
        parameters, properties = self._submitter.parameters, submission.device_properties(self.target)
        ranges = problems.stated_ranges(properties)
        fixed = None if isinstance(self._scale, str) else self._scale
        factor = ranges.fitting([one.chip for one in packed]) if fixed is None else fixed
        for one in packed:
            if one.chip is None:  # what a composite programs is checked by the device
                continue
            if betas is not None:
                ranges.check(one.chip, factor)
            if parameters.get("fast_anneal") and one.chip.fields.any():
                got = "other values; use TiledComposite(..., fields='ancilla')"
                raise ArgumentError("fields", "0 with fast_anneal, which has no h", got)
        limits = (self._reads_per_call, problems.longest_run(parameters, properties))
        most = min((limit for limit in limits if limit is not None), default=None)
        return submission.split_reads(packed, factor, num_reads, seed, most)

    def _packed(self, ising: Ising, betas: Betas) -> list[Packed]:
        """Models of several problems, with what they program where that is known."""
        alone, tiled = problems.program(ising, betas), self._tiled
        if tiled is None:
            packed = problems.pack(alone, self.together or 1)
            return packed if self._submitter.embeds else [replace(one, chip=one.biases) for one in packed]
        joined = problems.pack(alone, self.together or max(1, len(alone)))
        batches = [(one, np.array(batch)) for one in joined for batch in tiled.batches(problems.model(one))]
        parts = [one.part(batch, number) for number, (one, batch) in enumerate(batches)]
        return [replace(part, chip=tiled.programmed(problems.model(part))) for part in parts]

    @cached_property
    def _submitter(self) -> Submitter:
        submitter = self._new_submitter()
        temperature.check_sampler(submitter.sampler, submitter.parameters, self._beta, self._law)
        return submitter

    def _facts(self, betas: Betas, factor: float) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "law": self._law,
            "sampler": type(self.target).__name__,
            "beta": self._beta if isinstance(self._beta, str) else "declared",
            "programmed_with": tuple(betas),
            "scale": factor,
            "effective_beta": (factor, factor),
            "reads_spent": self.budget.reads,
            "qpu_seconds_spent": self.budget.seconds,
        }
        if not self._submitter.seeded and self._cache is None:
            facts["seed"] = None  # the sampler accepts no seed: the reads cannot be reproduced
        return facts
