from typing import Any

import pytest

from diabat.config import ConfigError, make_config
from diabat.runs import build_model, build_sampler, build_task
from diabat.samplers import registry

BACKENDS = "dqa, exact, mean_field"
TASKS = "brackets, recall, text, shakespeare"
BAD = [
    # unknown keys
    ({"trainin": {}}, "trainin: unknown key. Did you mean 'training'?"),
    ({"learning_rate": 1}, "learning_rate: unknown key. Did you mean 'training.learning_rate'?"),
    ({"training": {"lr": 1}}, "training.lr: unknown key. Did you mean 'training.learning_rate'?"),
    ({"training": {"patienc": 1}}, "training.patienc: unknown key. Did you mean 'training.patience'?"),
    ({"model": {"dim": 1}}, "model.dim: unknown key. Did you mean 'model.embed_dim' or 'model.ffn_dim'?"),
    ({"model": {"heads": 1}}, "model.heads: unknown key. Did you mean 'model.num_heads'?"),
    ({"task": {"name": "brackets", "windo": 4}}, "task.windo: unknown key. Did you mean 'task.window'?"),
    ({"sampler": {"backend": "dqa", "anneal_time_ns": 5}},
     "sampler.anneal_time_ns: unknown key. Did you mean 'sampler.annealing_time_ns'?"),
    ({"fidelity": {"backends": {"a": {"backend": "exact", "memory_budget": 1}}}},
     "fidelity.backends.a.memory_budget: unknown key. Did you mean 'fidelity.backends.a.memory_budget_mb'?"),
    # choices
    ({"task": {"name": "bracket"}},
     f"task.name: expected one of {TASKS}, got 'bracket' (string). Did you mean 'brackets'?"),
    ({"task": {"window": 8}}, f"task.name: this key is required; it is one of {TASKS}."),
    ({"model": {"mode": "hJ"}},
     "model.mode: expected one of softmax, h+J, h, J, h+K, J+K, h+J+K, K, J-self, got 'hJ'. Did you mean 'h+J'?"),
    ({"gradient": "exac"},
     "gradient: expected 'auto', 'exact', 'straight_through', 'linear_response', 'covariance' or 'adjoint', "
     "got 'exac' (string)."),
    ({"fidelity": {"ensembles": ["sk", "x"]}},
     "fidelity.ensembles[1]: expected 'sk' or 'ferromagnet', got 'x' (string)."),
    # types
    ({"task": 3}, "task: expected a mapping, got 3 (integer)."),
    ({"model": "h"}, "model: expected a mapping, got 'h' (string)."),
    ({"training": []}, "training: expected a mapping with keys such as training.learning_rate, got [] (list)."),
    ({"sampler": "exact"}, "sampler: expected a mapping with keys such as sampler.backend, got 'exact' (string)."),
    ({"sampler": {"backend": None}}, "sampler.backend: expected the name of a backend, got null."),
    ({"strengths": [1]}, "strengths: unknown key. Did you mean 'anneal.strengths' or 'fidelity.strengths'?"),
    ({"lr": 1}, "lr: unknown key. Did you mean 'training.learning_rate'?"),
    ({"seed": "1"}, "seed: expected an integer, got '1' (string)."),
    ({"seed": 1.5}, "seed: expected an integer, got 1.5 (number)."),
    ({"model": {"embed_dim": True}}, "model.embed_dim: expected an integer, got true (boolean)."),
    ({"model": {"causal": 1}}, "model.causal: expected true or false, got 1 (integer)."),
    ({"training": {"clip": None}}, "training.clip: expected a number, got null."),
    ({"training": {"clip": {"a": 1}}}, "training.clip: expected a number, got a mapping."),
    ({"fidelity": {"sizes": 8}}, "fidelity.sizes: expected a list, got 8 (integer)."),
    ({"fidelity": {"strengths": [0.1, "x"]}}, "fidelity.strengths[1]: expected a number, got 'x' (string)."),
    ({"sampler": {"backend": "dqa", "steps": "ten"}},
     "sampler.steps: expected an integer, got 'ten' (string)."),
    ({"sampler": {"backend": "dqa", "schedule": 5}}, "sampler.schedule: expected a string, got 5 (integer)."),
    ({"sampler": {"backend": "dqa", "learn_schedule": 1}},
     "sampler.learn_schedule: expected true or false, got 1 (integer)."),
    # ranges
    ({"seed": -1}, "seed: expected a number >= 0, got -1 (integer)."),
    ({"task": {"name": "brackets", "window": 2}}, "task.window: expected an integer >= 4, got 2."),
    ({"model": {"embed_dim": 6, "num_heads": 4}},
     "model.embed_dim: expected a multiple of num_heads = 4, got 6."),
    ({"model": {"embedding_dropout": 1.0}},
     "model.embedding_dropout: expected a number in [0, 1), got 1.0."),
    ({"model": {"relative": True, "causal": False}},
     "model.relative: expected causal=True, since windows end at the query, got causal=False."),
    ({"model": {"far": "independent"}},
     "model.far: expected 'none' without relative=True, got 'independent'."),
    ({"model": {"relative": True, "weights": "odd"}},
     "model.weights: expected one of probability, odds, got 'odd'. Did you mean 'odds'?"),
    ({"model": {"positions": "rotary"}}, "model.positions: expected one of learned, rope, none, got 'rotary'."),
    ({"model": {"attention_window": 4}},
     "model.attention_window: expected None without relative couplings, got 4."),
    ({"training": {"patience": 0}}, "training.patience: expected an integer >= 1, got 0."),
    ({"training": {"max_epochs": 10**400}},
     "training.max_epochs: expected at most 9223372036854775807, got about 1e400."),
    ({"fidelity": {"backends": {}}}, "fidelity.backends: expected a length >= 1, got an empty mapping."),
    ({"training": {"learning_rate": float("nan")}},
     "training.learning_rate: expected a finite number, got nan (number)."),
    ({"training": {"learning_rate": float("inf")}},
     "training.learning_rate: expected a finite number, got inf (number)."),
    ({"training": {"schedule_learning_rate": -1.0}},
     "training.schedule_learning_rate: expected a number in [0, inf), got -1.0."),
    ({"training": {"schedule_learning_rate": float("inf")}},
     "training.schedule_learning_rate: expected a finite number, got inf (number)."),
    ({"sampler": {"backend": "dqa", "annealing_time_ns": float("inf")}},
     "sampler.annealing_time_ns: expected a finite number, got inf (number)."),
    # an unknown key comes before other faults, and one unlike any other lists the valid ones
    ({"seed": "x", "training": {"patienc": 1}},
     "training.patienc: unknown key. Did you mean 'training.patience'?"),
    ({"zzzz": 1}, "zzzz: unknown key. Valid keys here: anneal, device, fidelity, gradient, model, ..."),
    # names of models
    ({"model": {"name": "transformr"}},
     "model.name: expected one of transformer, got 'transformr' (string). Did you mean 'transformer'?"),
    ({"model": {"name": 3}}, "model.name: expected one of transformer, got 3 (integer)."),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), BAD, ids=[message.split(":")[0] for _, message in BAD])
def test_a_bad_value_is_one_sentence(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(document)
    got = str(caught.value)
    assert got.startswith(message[:-3]) if message.endswith("...") else got == message


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^sampler\.backend: expected one of .*, got 'dqq'\. Did you mean 'dqa'\?$"
    ):
        make_config({"sampler": {"backend": "dqq"}})


def test_built_in_backends_are_found_without_a_search_of_all_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 17 ms for each backend of a configuration."""
    monkeypatch.setattr(registry, "entry_points", lambda group: pytest.fail("searched"))
    make_config({"fidelity": {"backends": {name: {"backend": name} for name in ("exact", "dqa")}}})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"backend": "mean_field", "damping": 2}, r"damping: expected a number in \(0, 1\], got 2"),
        (
            {"backend": "dqa", "engine": "nativ"},
            r"engine: expected one of native, .* Did you mean 'native'\?",
        ),
        ({"backend": "dqa", "betas": [1.0, -2.0]}, "betas: expected two positive numbers"),
        (
            {"backend": "dqa", "engine": "aer", "learn_schedule": True},
            "learn_schedule: expected engine native",
        ),
    ],
)
def test_values_that_only_the_backend_checks_are_refused_when_it_is_built(
    section: dict[str, Any], message: str
) -> None:
    config = make_config({"sampler": section})
    with pytest.raises(ConfigError, match=rf"^sampler\.{message}") as caught:
        build_sampler(config.sampler)
    assert "\n" not in str(caught.value)


def test_a_window_above_the_limit_of_the_sampler_names_the_key_that_gave_it() -> None:
    model = {"relative": True, "attention_window": 40}
    config = make_config({"task": {"name": "brackets", "num_train": 4, "num_validation": 4}, "model": model})
    with pytest.raises(ConfigError, match=r"^model\.attention_window: sampler 'exact' accepts at most"):
        build_model(config, build_task(config))


def test_parts_that_do_not_fit_together_are_refused_when_the_model_is_built() -> None:
    small = {"name": "brackets", "window": 4, "num_train": 8, "num_validation": 8}
    for document, message in (
        ({"sampler": {"backend": "mean_field"}, "gradient": "covariance"}, "gradient: sampler 'mean_field'"),
        (
            {"sampler": {"backend": "dqa"}, "model": {"mode": "h+K"}},
            r"model\.mode: sampler 'dqa' does not support three-body",
        ),
        (
            {"sampler": {"backend": "dqa"}, "task": small | {"window": 27}},
            r"task\.window: sampler 'dqa' accepts at most 26 spins, got 27",
        ),
        (
            {"sampler": {"backend": "dqa", "engine": "aer"}, "gradient": "adjoint"},
            r"gradient: sampler 'dqa' supports straight_through, linear_response, covariance, got 'adjoint'",
        ),
        (
            {"sampler": {"backend": "dqa", "learn_schedule": True}, "gradient": "straight_through"},
            r"gradient: sampler 'dqa' supports adjoint, got 'straight_through'",
        ),
    ):
        config = make_config({"task": small, **document})
        with pytest.raises(ConfigError, match=message):
            build_model(config, build_task(config))


def test_a_configuration_that_contains_itself_is_refused() -> None:
    sizes: list[Any] = [8]
    sizes.append(sizes)
    with pytest.raises(ConfigError, match="the configuration contains itself"):
        make_config({"fidelity": {"sizes": sizes}})
