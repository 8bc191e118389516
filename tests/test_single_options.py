"""Wrong values of one option, generated from its kind: each is refused in a sentence with name, expected and got."""

from __future__ import annotations

import inspect
import math
import re
from functools import partial
from typing import Any, get_type_hints

import dimod
import numpy as np
import pytest
import torch

import diabat
from diabat.attention import CouplingInit, WindowCouplings
from diabat.attention.core import LawOptions
from diabat.attention.coupled import CoupledLayer
from diabat.checks import ArgumentError
from diabat.circuits import (
    AerEngine,
    NativeEngine,
    PrimitiveEngine,
    TorchEngine,
    linear_ramp,
    predicted_beta,
    schedule,
    trotter_plan,
)
from diabat.heads import (
    Calibration,
    Dividends,
    GameOptions,
    common,
    max_dividend,
    small_coalitions,
    surrogate,
)
from diabat.heads.lora.losses import cross_head_barlow_twins, log_det_barrier, pair_weights
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.ising import from_bqm, from_qubo
from diabat.lab.config.schema import FidelityOptions
from diabat.lab.models import PairClassifierOptions, TransformerOptions
from diabat.lab.studies.ensembles import ferromagnet, sk, tokens
from diabat.lab.studies.fidelity import fidelity_report
from diabat.lab.studies.learned.problems import AnnealOptions
from diabat.lab.tasks import BracketOptions, PairOptions, RecallOptions, ShakespeareOptions, TextOptions
from diabat.lab.training import TrainOptions
from diabat.samplers.dimod.tiled import TiledComposite
from diabat.samplers.ocean import OceanSampler
from diabat.testing import ReferenceSampler
from diabat.testing.strict_qpu import StrictMockQPU

BACKEND, ONE = ReferenceSampler(), diabat.Ising([0.5])
OCEAN, EMPTY = OceanSampler("exact"), OceanSampler("exact")  # the second is given no spins
GAME = Dividends.of(torch.zeros(2, 8), 3)
# Kinds: `2` is an integer of 2 or more, `1..9` has a largest, `(0,1]` is an interval of numbers, the names of PHRASES
# are finite numbers above 0, `flag` is True or False, and `a|b` one of these names.  `?` takes None too.  After the
# slash stand options of other forms, which the tests of their own file refuse.
TABLE: dict[Any, str] = {
    "banded": "bandwidth=0? engine=auto|native|torch memory_budget_mb=positive max_seconds=positive",
    "dimod": """num_reads=1 reads_per_call=1? together=1? max_reads=0? max_qpu_seconds=[0,inf)? retries=0
        retry_wait_s=[0,inf) / sampler options parameters beta law scale cache_dir""",
    "distributed": "workers=0? chunk=1 progress=flag / sampler options executor",
    "dqa": """annealing_time_ns=time? order=strang|first? calibration=predicted|none? num_reads=1? learn_schedule=flag
        precision=double/single? / engine schedule protocol steps betas noise device""",
    "exact": "memory_budget_mb=positive max_seconds=positive",
    "mean_field": "damping=(0,1] max_iterations=1 tolerance=positive",
    "refine": "sweeps=0 num_reads=1 / sampler options",
    "tempering": """num_replicas=1-256? burn_in=1..2147483647 sweeps=1..2147483647 num_chains=1..2147483647
        thin=1..2147483647? method=heat_bath|metropolis? num_reads=1 persistent=flag track_lowest=flag
        threads=1..2147483647? / betas schedule""",
    TiledComposite: """spins=1 bandwidth=0? fields=direct|ancilla chain_strength=positive? seed=0..4294967295
        / child child_options""",
    AerEngine: "precision=double/single threads=0 batch_size=1",
    NativeEngine: "precision=double/single threads=1",
    TorchEngine: "precision=double/single memory_gib=GiB / device",
    PrimitiveEngine: "max_spins=1? / primitive backend optimization_level",
    diabat.BoltzmannAttention: """embed_dim=1 num_heads=1 window=1 relative=flag bandwidth=1? offset_bias=flag
        causal=flag dropout=[0,1] rotary=flag readout=odds|probability softcap=positive? scale=(-inf,inf)? num_reads=1?
        / mode coupling_init bias device dtype sampler gradient far""",
    diabat.BoltzmannMultiheadAttention: """embed_dim=1 num_heads=1 dropout=[0,1] window=1 bandwidth=1? num_reads=1?
        readout=odds|probability softcap=positive? scale=(-inf,inf)? / mode coupling_init bias add_bias_kv add_zero_attn
        kdim vdim batch_first device dtype sampler gradient far""",
    diabat.NeuroGameAttention: """embed_dim=1 num_heads=1 temperature=positive weighting=gibbs|uniform num_coalitions=1
        eval_coalitions=1 f=identity|relu|tanh normalisation=l1|sum|none output=pooled|tokens mode=h+J|h|uniform
        dropout=[0,1] num_reads=1? / sampler gradient learn_temperature eval_seed bias""",
    CouplingInit: "mean=(-inf,inf) std=[0,inf) max_distance=1?",
    WindowCouplings: "num_heads=1 window=1 bandwidth=1? relative=flag offset_bias=flag / terms init device dtype",
    BoltzmannOptions: """window=1 readout=odds|probability far=none|independent num_reads=1? bandwidth=1?
        / sampler gradient layers""",
    TrainOptions: """learning_rate=[0,inf) coupling_learning_rate=[0,inf) schedule_learning_rate=[0,inf)
        weight_decay=[0,inf) coupling_weight_decay=[0,inf) clip=(0,inf] batch_size=1 accumulation=1 max_epochs=1
        max_steps=1? patience=1 precision=float32|bfloat16 checkpoint_every=1 seed=0..2147483647 log_every=0""",
    AnnealOptions: """steps=1..1000000 pair_weight=size0? instances=1 wide_fields=size? restarts=1 iterations=1 polish=0
        held_out=1 / strengths weights spins wide_weight run start""",
    FidelityOptions: """instances=1 queries=1 num_reads=1
        / ensembles strengths token_weights sizes backends problem beta checkpoint""",
    GameOptions: """ldb_weight=[0,inf) abt_weight=[0,inf) disagreement_weight=[0,inf) entropy_weight=[0,inf)
        epsilon=(0,inf) target=identity|zero weighting=adaptive|inverse|uniform floor=[0,1] slope=(0,inf)
        threshold=(-inf,inf) ema_decay=(0,1] ema_target=(0,inf) warmup=[0,1] cooldown=[0,1] combination=nash|sum
        nash_every=1 rho=fresh|last_step / layers ldb_layers abt_layers losses""",
    Calibration: "alpha=[0,1] beta=[0,1] rows=running|prompt redistribution=proportional|uniform / salient",
    TransformerOptions: """embed_dim=1 num_heads=1 num_layers=1 ffn_dim=0 dropout=[0,1) attention_dropout=[0,1)?
        embedding_dropout=[0,1) causal=flag bandwidth=1? relative=flag attention_window=1? far=none|independent?
        readout=odds|probability positions=learned|rope|none offset_bias=flag / mode coupling_init name""",
    PairClassifierOptions: """embed_dim=1 num_heads=1 num_layers=0 ffn_dim=0 hidden=1 dropout=[0,1)
        pooling=neurogame|boltzmann|softmax|mean mode=h+J|h|uniform pooling_dropout=[0,1) temperature=positive
        weighting=gibbs|uniform num_coalitions=1 eval_coalitions=1 f=identity|relu|tanh normalisation=l1|sum|none
        / learn_temperature coupling_init name""",
    BracketOptions: "window=4 vocab_size=3 num_train=1 num_validation=1 seed=0 / name",
    RecallOptions: """pairs=1 min_pairs=1? symbols=1 queries=1 filler=0 test_pairs=1? num_train=1 num_validation=1
        num_test=1 seed=0 / distance name""",
    PairOptions: """train_fraction=(0,1)? sentences=1..2 window=3? truncate=flag min_count=1 num_train=1
        num_validation=1 seed=0 / data validation test first second label part words classes name""",
    ShakespeareOptions: "window=1 characters=1? train_fraction=(0,1)? / data validation symbols name",
    TextOptions: "window=1 characters=1? train_fraction=(0,1)? / data validation symbols name",
    # Functions and methods.
    BACKEND.sample: "num_reads=1 seed=seed? / ising",
    BACKEND.moments: "num_reads=1? seed=seed? / ising correlations log_partition",
    OCEAN.sample: "num_reads=1 seed=seed? beta=[0,inf) / bqm unknown",
    EMPTY.sample: "num_reads=1 seed=seed? beta=[0,inf) / bqm unknown",
    from_bqm: "beta=(-inf,inf) / bqm",
    from_qubo: "beta=(-inf,inf) offset=(-inf,inf) / Q",
    predicted_beta: "annealing_time_ns=time / schedule",
    trotter_plan: "annealing_time_ns=time order=strang|first grid=uniform|adaptive / schedule steps",
    small_coalitions: "max_size=1..4? / num_players",
    max_dividend: "min_size=1..3 / dividends",
    common: "share=(0,1] / dividends",
    GAME.largest: "min_size=1..3",
    GAME.selection_frequency: "min_size=1..3 resamples=1 / seed",
    surrogate: "num_players=1 penalty=zero evaluations=8 rounds=1 num_reads=1 / value sampler seed",
    log_det_barrier: "epsilon=positive / coupling",
    cross_head_barlow_twins: "target=identity|zero / outputs weights mask",
    pair_weights: "weighting=adaptive|inverse|uniform / coupling floor slope threshold",
    sk: "num_spins=1 instances=1 queries=1 / strengths seed",
    ferromagnet: "num_spins=1 queries=1 / strengths seed",
    tokens: "num_spins=1 instances=1 / weights seed",
    fidelity_report: "num_reads=1 / backends ensembles seed progress",
}  # fmt: skip
PHRASES = {
    "positive": "a positive finite number",
    "size": "a finite number > 0",
    "size0": "a finite number >= 0",
    "time": "a positive finite time in ns",
    "GiB": "a positive number of GiB",
    "zero": "a number >= 0",
    "seed": "an integer between 0 and 2^63 - 1",
}
GIVEN: dict[Any, dict[str, Any]] = {
    diabat.BoltzmannAttention: {"embed_dim": 8, "num_heads": 2, "window": 4},
    diabat.BoltzmannMultiheadAttention: {"embed_dim": 8, "num_heads": 2, "window": 4},
    diabat.NeuroGameAttention: {"embed_dim": 8, "num_heads": 2},
    WindowCouplings: {"num_heads": 2, "window": 4},
    TiledComposite: {"child": StrictMockQPU(topology_type="zephyr", topology_shape=[2, 4]), "spins": 4},
    Calibration: {"salient": {0: []}},
    BACKEND.sample: {"ising": ONE, "num_reads": 1},
    BACKEND.moments: {"ising": ONE},
    OCEAN.sample: {"bqm": dimod.BinaryQuadraticModel({0: 1.0}, {}, "SPIN")},
    EMPTY.sample: {"bqm": dimod.BinaryQuadraticModel("SPIN")},
    from_bqm: {"bqm": dimod.BinaryQuadraticModel({0: 1.0}, {}, "SPIN")},
    from_qubo: {"Q": {(0, 0): 1.0}},
    predicted_beta: {"schedule": schedule("Advantage2_system1")},
    trotter_plan: {"schedule": linear_ramp(2.0, 2.0), "annealing_time_ns": 1.0},
    small_coalitions: {"num_players": 4},
    max_dividend: {"dividends": GAME},
    common: {"dividends": GAME},
    surrogate: {"value": len, "num_players": 4, "sampler": diabat.sampler("exact")},
    log_det_barrier: {"coupling": torch.eye(2)},
    cross_head_barlow_twins: {"outputs": torch.ones(1, 3, 2, 2)},
    pair_weights: {"coupling": torch.eye(2)},
    fidelity_report: {
        "backends": {"r": BACKEND},
        "ensembles": sk([0.1], num_spins=2, instances=1, queries=1),
    },
}
ARRAY, HUGE = np.array([1.0, 2.0]), 10**400
Wrong = tuple[Any, str]


def rows_of(options: str) -> dict[str, str]:
    """Name and kind of each option, the kind empty behind the slash."""
    known, _, others = " ".join(options.split()).partition(" / ")
    return dict(row.split("=", 1) for row in known.split()) | dict.fromkeys(others.split(), "")


def integers(least: int, most: int, beyond: str) -> list[Wrong]:
    words = f"an integer >= {least}"
    values = [least - 1, True, least + 0.5, str(least), math.nan, ARRAY, -HUGE]
    return [*((value, words) for value in values), (most + 1, beyond)]


def in_interval(text: str) -> list[Wrong]:
    low, high = (float(end) for end in text[1:-1].split(","))
    below = low if text[0] == "(" else math.nextafter(low, -math.inf)
    above = high if text[-1] == ")" else math.nextafter(high, math.inf)
    beyond = [] if text.endswith("inf]") else [above]
    values = [below, *beyond, math.nan, True, "0.5", HUGE, ARRAY]
    return [(value, f"a number in {text.replace(',', ', ')}") for value in values]


def of_kind(kind: str) -> list[Wrong]:
    """Values that an option of this kind cannot have, and what the sentence expects instead."""
    if match := re.fullmatch(r"(\d+)(?:\.\.(\d+))?", kind):
        most = int(match[2] or 2**63 - 1)
        return integers(int(match[1]), most, f"at most {most}")
    if match := re.fullmatch(r"(\d+)-(\d+)", kind):
        words, most = f"an integer between {match[1]} and {match[2]}", int(match[2])
        return [(value, words) for value, _ in integers(int(match[1]), most, "")]
    if kind[0] in "[(":
        return in_interval(kind)
    if words := PHRASES.get(kind, ""):
        values = [-1 if kind in ("size0", "zero", "seed") else 0, -1.0, math.nan, True, "1", HUGE, ARRAY]
        return [(value, words) for value in (values if kind == "zero" else [*values, math.inf])]
    if kind == "flag":
        return [(value, "True or False") for value in (1, None, "yes", ARRAY)]
    if kind == "double/single":
        return [(value, "'double' or 'single'") for value in ("half", "", 3, False)]
    words = "one of " + kind.replace("|", ", ")
    return [(value, words) for value in ("nonsense", "", kind.partition("|")[0][:-1], 3, False, ARRAY)]


def maker(of: Any) -> Any:
    return type(diabat.sampler(of)) if isinstance(of, str) else of


CASES = [(of, name, kind) for of, options in TABLE.items() for name, kind in rows_of(options).items() if kind]


@pytest.mark.parametrize(
    ("of", "name", "kind"), CASES, ids=[f"{getattr(of, '__name__', of)}-{name}" for of, name, _ in CASES]
)
def test_wrong_values_of_an_option_are_refused_in_a_sentence(of: Any, name: str, kind: str) -> None:
    make = partial(maker(of), **GIVEN.get(of, {}))
    wrong = of_kind(kind.removesuffix("?"))
    if not kind.endswith("?"):
        wrong.append((None, wrong[0][1]))
    for value, words in wrong:
        with pytest.raises((ValueError, TypeError)) as caught:
            pytest.fail(f"{name} = {value!r} is taken: {make(**{name: value})}")
        assert re.match(rf"{name}: expected {re.escape(words)}[^\n]*, got [^\n]+", str(caught.value))
        assert isinstance(caught.value, ArgumentError)
        assert caught.value.argument == name


@pytest.mark.parametrize("of", TABLE, ids=[getattr(of, "__qualname__", of) for of in TABLE])
def test_every_option_has_a_kind(of: Any) -> None:
    names = set(inspect.signature(maker(of)).parameters)
    if "law" in names and inspect.isclass(of) and issubclass(of, CoupledLayer):
        names = names - {"law"} | set(get_type_hints(LawOptions))
    assert set(rows_of(TABLE[of])) == names


BACKENDS = set(diabat.available_backends())  # before a test registers one


def test_every_backend_has_its_options_in_the_table() -> None:
    assert {of for of in TABLE if isinstance(of, str)} == BACKENDS
