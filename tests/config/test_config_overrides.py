from typing import Any

import pytest

from diabat.config import ConfigError, load_config
from diabat.config.loading import apply_overrides, parse_override


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("sampler.backend=dqa", ("sampler", "backend"), "dqa"),
        ("training.learning_rate=1e-3", ("training", "learning_rate"), 1e-3),
        ("fidelity.sizes=[4, 8]", ("fidelity", "sizes"), [4, 8]),
        ("training.max_steps=null", ("training", "max_steps"), None),
        ("output=a=b", ("output",), "a=b"),
        ('output="1"', ("output",), "1"),
        ("fidelity.backends.dqa-5ns.steps=3", ("fidelity", "backends", "dqa-5ns", "steps"), 3),
    ],
)
def test_an_override_is_a_key_and_a_yaml_value(text: str, path: tuple[str, ...], value: Any) -> None:
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", r"override 'seed': expected KEY=VALUE, for example"),
        ("=3", r"override '=3': expected KEY=VALUE"),
        ("a..b=3", r"override 'a\.\.b=3': expected KEY=VALUE"),
        ("seed=", r"override 'seed=': expected a value after '=', got nothing; write seed=null"),
        ("seed=[1", r"override 'seed=\[1': expected ',' or '\]', got the end of the text\."),
        ("sampler={backend: dqa}", r"expected a scalar or a list, got a mapping"),
        ("seed.deep=1", r"override seed\.deep: expected a section at 'seed', got 3 \(integer\)"),
    ],
)
def test_a_malformed_override_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        apply_overrides({"seed": 3}, [text])
    assert "\n" not in str(caught.value)


def test_the_last_override_wins_and_the_document_is_left_alone() -> None:
    document: dict[str, Any] = {"training": {"seed": 0}}
    assert apply_overrides(document, ["training.seed=1", "training.seed=2"]) == {"training": {"seed": 2}}
    assert document == {"training": {"seed": 0}}


def test_overrides_make_missing_and_empty_sections() -> None:
    assert apply_overrides({"model": None}, ["model.mode=h", "a.b.c=1"]) == {
        "model": {"mode": "h"},
        "a": {"b": {"c": 1}},
    }


@pytest.mark.parametrize("order", [1, -1])
def test_another_backend_drops_the_options_of_the_old_one(order: int) -> None:
    overrides = ["sampler.backend=dqa", "sampler.annealing_time_ns=7"][::order]
    document = {"sampler": {"backend": "exact", "memory_budget_mb": 64}}
    assert apply_overrides(document, overrides) == {"sampler": {"backend": "dqa", "annealing_time_ns": 7}}


def test_naming_the_same_backend_keeps_its_options() -> None:
    document = {"sampler": {"backend": "exact", "memory_budget_mb": 64}}
    assert apply_overrides(document, ["sampler.backend=exact"]) == document


def test_the_shipped_dqa_configuration_runs_with_another_backend() -> None:
    config = load_config("brackets-t4-dqa", ["sampler.backend=exact", "gradient=auto"])
    assert config.sampler.backend == "exact"
    assert "annealing_time_ns" not in config.sampler.options
