"""The primitive engine: its law, its bit order, what it compiles and runs, and how it fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import ALPHA, g_test
from qiskit.primitives import BaseSamplerV2, StatevectorSampler
from qiskit.transpiler import generate_preset_pass_manager

from diabat.circuits import (
    Batch,
    PrimitiveEngine,
    TrotterPlan,
    reference_probabilities,
    schedule,
    trotter_plan,
)
from diabat.secrets import safe_message

from .conftest import Array, line_backend, random_plan, random_problem

N = 4000
TOKEN = "b7Q-x_0123456789abcdefABCDEFxyz0123456789"


class Recorder(BaseSamplerV2):  # type: ignore[misc]  # Qiskit has no types
    """Passes everything on to Qiskit's own sampler and keeps what it was given."""

    def __init__(self) -> None:
        self.jobs: list[list[Any]] = []

    def run(self, pubs: Iterable[Any], *, shots: int | None = None) -> Any:
        """Run on the state-vector sampler."""
        self.jobs.append(list(pubs))
        return StatevectorSampler(seed=7).run(self.jobs[-1], shots=shots)


class CountingPassManager:
    """Counts what it compiles."""

    def __init__(self) -> None:
        self.compiled = 0
        self.inner = generate_preset_pass_manager(1, basis_gates=["rz", "sx", "cx"], seed_transpiler=0)

    def run(self, circuit: Any) -> Any:
        """Compile."""
        self.compiled += 1
        return self.inner.run(circuit)


class Failing(BaseSamplerV2):  # type: ignore[misc]  # Qiskit has no types
    """Says its account in its error and in its repr."""

    def run(self, pubs: Iterable[Any], *, shots: int | None = None) -> Any:
        """Fail."""
        raise ConnectionError(f"job refused for token={TOKEN}\n queue closed")

    def __repr__(self) -> str:
        return f"Failing({TOKEN})"


class OneShot(BaseSamplerV2):  # type: ignore[misc]  # Qiskit has no types
    """Takes one shot, whatever it is asked for."""

    def run(self, pubs: Iterable[Any], *, shots: int | None = None) -> Any:
        """Run with one shot."""
        return StatevectorSampler(seed=1).run([(circuit, values, 1) for circuit, values, _ in pubs])


def draw(engine: PrimitiveEngine, plan: TrotterPlan, batch: Batch, seed: int = 1) -> NDArray[np.int8]:
    (spins,) = engine.sample(plan, [batch], N, np.random.default_rng(seed))
    return spins


def test_the_cost_of_a_slow_simulation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the built-in sampler; a primitive of the caller is not judged."""
    plan, batch = random_plan(3, seed=4), Batch(*random_problem(4, 3, seed=4))
    monkeypatch.setattr("diabat.circuits.engines.qiskit.primitive._MANY_GATES", 100)
    gates = 3 * PrimitiveEngine().circuit(plan, batch).circuit.size()
    with pytest.warns(
        UserWarning, match=rf"engine: 'primitive' simulates {gates} gates .*'native' has the same"
    ):
        draw(PrimitiveEngine(), plan, batch)
    draw(PrimitiveEngine(StatevectorSampler(seed=np.random.default_rng(1))), plan, batch)


def test_couplings_of_each_problem() -> None:
    """As above; some problems lack pairs that others have."""
    plan = random_plan(3, seed=5)
    fields, _ = random_problem(3, 3, seed=5)
    couplings = np.stack([random_problem(3, 1, seed=q)[1] for q in range(3)])
    couplings[0, 0, 1] = couplings[0, 1, 0] = 0.0
    law = np.concatenate([reference_probabilities(plan, fields[q : q + 1], couplings[q]) for q in range(3)])
    spins = draw(PrimitiveEngine(), plan, Batch(fields, couplings))
    assert g_test(spins, law) > ALPHA
    assert g_test(spins, reference_probabilities(plan, fields, couplings[1])) < ALPHA


@pytest.mark.parametrize("level", [0, 1, 3])
def test_compiling_for_a_backend_keeps_the_bits_in_order(level: int) -> None:
    """All pairs of 4 spins on a line of 5 qubits; fields tell every spin from the others. alpha = 1e-6, N = 4000."""
    plan = random_plan(3, seed=6)
    fields, couplings = np.array([[1.5, 0.2, -0.6, -1.2]]), random_problem(4, 1, seed=6)[1]
    batch = Batch(fields, couplings)
    engine = PrimitiveEngine(backend=line_backend(), optimization_level=level)
    compiled = engine.circuit(plan, batch).circuit
    assert compiled.num_qubits == 5
    assert set(compiled.count_ops()) <= {"rz", "sx", "x", "cx", "measure", "barrier"}
    assert g_test(draw(engine, plan, batch), reference_probabilities(plan, fields, couplings)) > ALPHA


def test_a_scrambled_layout_keeps_the_bits_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = random_plan(3, seed=7)
    fields, couplings = np.array([[1.5, 0.2, -1.1]]), random_problem(3, 1, seed=7)[1]
    passes = generate_preset_pass_manager(
        1, target=line_backend().target, initial_layout=[4, 0, 2], seed_transpiler=0
    )
    monkeypatch.setattr("qiskit.transpiler.generate_preset_pass_manager", lambda *args, **options: passes)
    engine = PrimitiveEngine(backend=line_backend())
    circuit = engine.circuit(plan, Batch(fields, couplings)).circuit
    assert circuit.layout.initial_index_layout(filter_ancillas=True) == [4, 0, 2]
    law = reference_probabilities(plan, fields, couplings)
    assert g_test(draw(engine, plan, Batch(fields, couplings)), law) > ALPHA


def test_compiled_once_per_plan_and_coupled_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = CountingPassManager()
    monkeypatch.setattr("qiskit.transpiler.generate_preset_pass_manager", lambda *args, **options: passes)
    engine = PrimitiveEngine(backend=line_backend())
    plan, same, other = random_plan(2, seed=1), random_plan(2, seed=1), random_plan(2, seed=2)
    fields, couplings = random_problem(3, 2, seed=1)
    sparse = couplings * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])

    def compiled(plan: TrotterPlan, *batches: Batch) -> int:
        before = passes.compiled
        engine.sample(plan, batches, 5, np.random.default_rng(1))
        return passes.compiled - before

    assert compiled(plan, Batch(fields, couplings), Batch(-fields, 2 * couplings)) == 1
    assert compiled(plan, Batch(fields[:1], 3 * couplings)) == 0
    assert compiled(same, Batch(fields, couplings)) == 0
    assert compiled(plan, Batch(fields, np.stack([couplings, -couplings]))) == 0
    assert compiled(plan, Batch(fields, sparse)) == 1
    assert compiled(plan, Batch(fields[:, :2], couplings[:2, :2])) == 1
    assert compiled(other, Batch(fields, couplings)) == 1
    assert compiled(plan, Batch(fields, couplings), Batch(fields, sparse)) == 0


def test_kept_circuits_are_bounded() -> None:
    engine = PrimitiveEngine()
    batch = Batch(np.zeros((1, 1)), np.zeros((1, 1)))
    first = engine.circuit(random_plan(1, seed=0), batch)
    assert engine.circuit(random_plan(1, seed=0), batch) is first
    for seed in range(1, 65):
        engine.circuit(random_plan(1, seed=seed), batch)
    assert engine.circuit(random_plan(1, seed=0), batch) is not first


def test_one_job_with_one_pub_per_batch_and_none_for_nothing() -> None:
    recorder, plan, random = Recorder(), random_plan(2, seed=1), np.random.default_rng(1)
    engine = PrimitiveEngine(recorder)
    empty = Batch(np.zeros((0, 2)), np.zeros((2, 2)))
    assert engine.sample(plan, [empty], 3, random)[0].shape == (3, 0, 2)
    assert engine.sample(plan, [], 3, random) == []
    assert not recorder.jobs
    batches = [Batch(*random_problem(n, problems, seed=n)) for n, problems in ((1, 2), (3, 0), (3, 4))]
    spins = engine.sample(plan, batches, 6, random)
    assert [s.shape for s in spins] == [(6, 2, 1), (6, 0, 3), (6, 4, 3)]
    (job,) = recorder.jobs
    pubs = [(circuit.num_qubits, values.shape, shots) for circuit, values, shots in job]
    assert pubs == [(1, (2, 1), 6), (3, (4, 6), 6)]
    limits = [engine.max_spins, PrimitiveEngine(backend=line_backend(), max_spins=3).max_spins]
    assert [*limits, PrimitiveEngine(recorder, max_spins=127).max_spins] == [20, 3, 127]


def test_the_built_in_sampler_is_seeded_by_the_generator() -> None:
    plan, batch = random_plan(2, seed=2), Batch(*random_problem(3, 2, seed=2))
    engine = PrimitiveEngine()
    assert (draw(engine, plan, batch, seed=1) == draw(PrimitiveEngine(), plan, batch, seed=1)).all()
    assert (draw(engine, plan, batch, seed=1) != draw(engine, plan, batch, seed=2)).any()
    random = np.random.default_rng(1)
    first, second = (engine.sample(plan, [batch], N, random)[0] for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize("aer", [False, True])
def test_equal_problems_are_read_independently(aer: bool) -> None:
    """All reads of 40 equal problems, pooled, follow the law (alpha = 1e-6); shared random numbers would not."""
    plan, (fields, couplings) = random_plan(2, seed=2), random_problem(2, 1, seed=2)
    batch = Batch(np.repeat(fields, 40, axis=0), couplings)
    engine = PrimitiveEngine(noisy_sampler(0.0) if aer else None)
    spins = np.concatenate(engine.sample(plan, [batch, batch], 100, np.random.default_rng(3)), axis=1)
    assert len(np.unique(spins, axis=1)[0]) == 80
    law = reference_probabilities(plan, fields, couplings)
    assert g_test(spins.reshape(-1, 1, 2), law) > ALPHA


def test_a_long_anneal() -> None:
    """The default 200 steps at 5 ns, four coupled spins; chi-square at alpha = 1e-6, N = 4000."""
    plan = trotter_plan(schedule("Advantage2_system1"), 5.0, 200)
    fields, couplings = random_problem(4, 2, seed=3, scale=0.05)
    spins = draw(PrimitiveEngine(), plan, Batch(fields, couplings))
    assert g_test(spins, reference_probabilities(plan, fields, couplings)) > ALPHA


@pytest.mark.parametrize("aer", [False, True])
@pytest.mark.parametrize("mixer", [0.0, 1.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_parameters_that_fall_away(aer: bool, mixer: float, compiled: bool) -> None:
    """Angles of zero make no gate, and compiling drops phases before the readout: all states are alike.

    Aer's sampler returns zeros for all problems but the first if a circuit without parameters has several.
    """
    angle = np.array([0.0 if mixer else 1.0])
    plan = TrotterPlan(angle, angle, np.array([mixer]))
    engine = PrimitiveEngine(
        noisy_sampler(0.0) if aer else None, line_backend() if compiled else None, optimization_level=3
    )
    spins = draw(engine, plan, Batch(*random_problem(2, 3, seed=1)))
    assert g_test(spins, np.full((3, 4), 0.25)) > ALPHA


def noisy_sampler(strength: float) -> Any:
    """Aer's sampler with a depolarizing channel after every RX."""
    from qiskit_aer.noise import NoiseModel, depolarizing_error
    from qiskit_aer.primitives import SamplerV2

    model = NoiseModel()
    if strength:
        model.add_all_qubit_quantum_error(depolarizing_error(strength, 1), ["rx"])
    return SamplerV2(seed=5, options={"backend_options": {"noise_model": model}})


def test_depolarizing_noise_shrinks_the_marginals() -> None:
    """One step: <s> -> (1 - p) <s>, so P(+1) = 1/2 + (1 - p)(P_0(+1) - 1/2). alpha = 1e-6, N = 4000, p = 0.4."""
    plan = TrotterPlan(np.array([1.0]), np.array([0.0]), np.array([np.pi / 2]))
    fields, couplings = np.array([[0.9, -0.4]]), np.zeros((2, 2))
    law = reference_probabilities(plan, fields, couplings)
    up = law @ np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    for strength in (0.0, 0.4):
        shrunk = 0.5 + (1 - strength) * (up[0] - 0.5)
        noisy: Array = np.kron([1 - shrunk[1], shrunk[1]], [1 - shrunk[0], shrunk[0]])[None]
        spins = draw(PrimitiveEngine(noisy_sampler(strength)), plan, Batch(fields, couplings))
        assert g_test(spins, noisy) > ALPHA
        assert (g_test(spins, law) > ALPHA) == (strength == 0)


def test_failures_are_one_sentence_without_credentials() -> None:
    """Also of a primitive that ignores the number of shots."""
    batch, plan, random = (
        Batch(np.zeros((3, 2)), np.zeros((2, 2))),
        random_plan(1, seed=1),
        np.random.default_rng(1),
    )
    with pytest.raises(RuntimeError) as caught:
        PrimitiveEngine(Failing()).sample(plan, [batch], 10, random)
    assert str(caught.value) == (
        "engine 'primitive': Failing failed on 1 circuit (3 problems, 10 shots each): "
        "ConnectionError: job refused for *** queue closed"
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(RuntimeError, match=r"expected measured bits of shape \(3, 10, 2\), got \(3, 1, 2\)"):
        PrimitiveEngine(OneShot()).sample(plan, [batch], 10, random)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"bad key {TOKEN} given", "bad key *** given"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("sent bearer abc", "sent bearer ***"),
        ("{'api_key': 'short'}", "{'api_key': ***}"),
        ('{\\"token\\": \\"s\\"}', '{\\"token\\": ***}'),
        ("{'token': ['a', 'b c'], 'n': 1}", "{'token': ***, 'n': 1}"),
        ("tokens=(a, b) left", "tokens=(a, b) left"),
        ("secret=(a, b) left", "secret=*** left"),
        ("password='two words' here", "password=*** here"),
        ("Authorization: Basic dXNl", "Authorization: ***"),
        ("sent Basic dXN0=", "sent Basic ***"),
        ("X-Auth-Token abc", "X-Auth-Token ***"),
        ("run with --token abc -v", "run with --token *** -v"),
        ("bad token 'abc'", "bad token ***"),
        ("GET https://me:abc@host/path", "GET https://***@host/path"),
        ("tcp://abc@host:8786 is away", "tcp://***@host:8786 is away"),
        ("at https://host/path?token=abc&x=1 now", "at https://host/path?*** now"),
        ("at https://host/#access=abc, now", "at https://host/?***, now"),
        ("?access_token=abc&x", "?access_token=***"),
        ("see https://host/path, please", "see https://host/path, please"),
        ("the basic idea of a bearer", "the basic idea of a bearer"),
        ("model.tokenizer: expected a name", "model.tokenizer: expected a name"),
        ("password = hunter2, again", "password = ***, again"),
        ("API token not defined", "API token not defined"),
        ("wrong password hunter2 for me", "wrong password *** for me"),
        ("the password is p@ss, again", "the password is ***, again"),
        ("password required! 3 tries", "password required! 3 tries"),
        ("password authentication failed", "password authentication failed"),
        ("bad token abc12345 given", "bad token *** given"),
        ("token 17 of 128, token layers.0", "token 17 of 128, token layers.0"),
        ("pat=abc jwt: abc my_pat=abc path=abc", "pat=*** jwt: *** my_pat=*** path=abc"),
        ("Cookie: session=abc; id=7 sent", "Cookie: *** sent"),
        ("cookie='a b' client_cert_key=/a", "cookie=*** client_cert_key=***"),
        ("connection_string=Server=a;Password=b;", "connection_string=***;Password=***;"),
        ("tcp://u:PASS/WO:RD@host:1 is away", "tcp://***@host:1 is away"),
        ("http://host:80/path@2 is away", "http://host:80/path@2 is away"),
        ("invalid address 'u:PASSWORD@127.0.0.1:9'", "invalid address '***@127.0.0.1:9'"),
        (
            "The instruction rzz on qubits (0, 1) is not supported",
            "The instruction rzz on qubits (0, 1) is not supported",
        ),
        ("a\n  b", "a b"),
        ("x y" * 200, ("x y" * 200)[:299] + "…"),
    ],
)
def test_scrubbing(message: str, expected: str) -> None:
    assert safe_message(OSError(message)) == f"OSError: {expected}"
