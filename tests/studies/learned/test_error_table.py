import numpy as np
import pytest
from learned_fakes import AnswerEngine, exact_answer

from diabat.circuits import (
    Batch,
    NativeEngine,
    TrotterPlan,
    predicted_beta,
    reference_probabilities,
    schedule,
    trotter_plan,
)
from diabat.circuits.problem import spin_table
from diabat.studies.fidelity import find_truth, sk
from diabat.studies.learned import COLUMNS, Instances, error_table, random_instances, recorded_instances

PLAN = TrotterPlan(*np.full((3, 3), 0.7))


def test_the_reference_columns_are_those_of_the_fidelity_report() -> None:
    ensembles = sk((0.5, 1.0), num_spins=4, instances=6, queries=1)
    rows = error_table(PLAN, [e for one in ensembles for e in recorded_instances(one)], NativeEngine())
    assert [(row["name"], row["num_spins"], row["strength"], row["instances"]) for row in rows] == [
        ("SK", 4, 0.5, 6),
        ("SK", 4, 1.0, 6),
    ]
    for row, ensemble in zip(rows, ensembles, strict=True):
        truth = find_truth(ensemble)
        assert row["independent"] == pytest.approx(truth.independent_error, rel=1e-9)
        assert row["mean_field"] == pytest.approx(truth.mean_field_error, rel=1e-9)


def test_plan_and_anneal_are_run_as_programmed() -> None:
    [entry] = random_instances((0.8,), (3,), 2, seed=4)
    [row] = error_table(PLAN, [entry], NativeEngine())
    table = schedule("Advantage2_system1")
    beta_h, beta_j = predicted_beta(table, 5.0)
    anneal = trotter_plan(table, 5.0, 200)
    states = spin_table(3)
    errors: dict[str, list[np.ndarray]] = {
        "learned": [],
        "anneal": [],
        "learned_pairs": [],
        "anneal_pairs": [],
    }
    for h, J, exact, pairs in zip(
        entry.batch.fields, entry.batch.couplings, entry.probability, entry.correlation, strict=True
    ):
        for name, plan, scales in (("learned", PLAN, (1, 1)), ("anneal", anneal, (beta_h, beta_j))):
            reads = reference_probabilities(plan, h[None] / scales[0], J / scales[1])[0]
            errors[name].append(reads @ (states > 0) - exact)
            found = np.einsum("x,xj,xk->jk", reads, states, states)
            errors[f"{name}_pairs"].append((found - pairs)[np.triu_indices(3, 1)])
    for name, differences in errors.items():
        assert row[name] == pytest.approx(np.abs(differences).mean(), rel=1e-9), name


def test_batches_of_one_place_are_one_row() -> None:
    [entry] = random_instances((0.8,), (3,), 4, seed=4)

    def part(rows: slice) -> Instances:
        batch = Batch(entry.batch.fields[rows], entry.batch.couplings[rows])
        return Instances("SK", 0.8, batch, entry.probability[rows], entry.correlation[rows])

    whole = error_table(PLAN, [entry], NativeEngine())
    parts = error_table(PLAN, [part(slice(0, 1)), part(slice(1, 4))], NativeEngine())
    assert len(parts) == 1
    assert parts[0].keys() == whole[0].keys() >= COLUMNS.keys()
    for key in (*COLUMNS, "learned_pairs", "anneal_pairs"):  # mean field stops at 1e-6, and later in company
        assert parts[0][key] == pytest.approx(whole[0][key], rel=1e-5)
    assert parts[0]["instances"] == 4


def test_exact_reads_have_no_error() -> None:
    [entry] = random_instances((0.8,), (3,), 4, seed=4)
    [row] = error_table(PLAN, [entry], AnswerEngine([exact_answer(entry)]))
    assert row["learned"] == row["learned_pairs"] == 0
