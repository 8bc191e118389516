"""Configurations: files, overrides, defaults, and the model that follows from the task."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

import diabat
from diabat.documents.overrides import apply_overrides, parse_override
from diabat.documents.yaml_files import parse_yaml
from diabat.lab.config import (
    Config,
    ConfigError,
    find_config,
    load_config,
    make_config,
    shipped_configs,
    to_plain,
    to_yaml,
)
from diabat.lab.config.keys import valid_keys
from diabat.lab.models import MODELS
from diabat.lab.runs import build_model, build_sampler, build_task
from diabat.lab.tasks import TASKS, BracketOptions, ShakespeareOptions
from diabat.lab.training import PROTOCOLS, TrainOptions
from diabat.samplers import registry
from diabat.samplers.dqa import DQASampler

SMALL = {"task": {"name": "brackets", "window": 4, "num_train": 16, "num_validation": 8}}


def test_the_empty_document_is_the_default_configuration() -> None:
    config = make_config({})
    assert isinstance(config.task, BracketOptions)
    assert (config.seed, config.gradient, config.sampler.backend) == (0, "auto", "exact")


@pytest.mark.parametrize("section", ["task", "model", "sampler", "training", "fidelity", "anneal"])
def test_a_section_left_empty_means_its_defaults(section: str) -> None:
    assert make_config({section: None}) == make_config({})


@pytest.mark.parametrize("task", TASKS)
def test_the_protocol_is_that_of_the_task(task: str) -> None:
    assert make_config({"task": {"name": task}}).training == PROTOCOLS.get(task, TrainOptions())


def test_values_in_the_file_replace_the_published_values() -> None:
    training = make_config({"task": {"name": "brackets"}, "training": {"learning_rate": 0.5}}).training
    assert (training.learning_rate, training.coupling_learning_rate) == (0.5, 1e-4)


def test_the_seed_of_the_run_is_the_seed_of_the_training_unless_given() -> None:
    for task in TASKS:
        assert make_config({"seed": 4, "task": {"name": task}}).training.seed == 4
    assert make_config({"seed": 4, "training": {"seed": 5}}).training.seed == 5


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configurations_are_valid_and_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    for suffix, text in (("yaml", to_yaml(config)), ("json", json.dumps(to_plain(config)))):
        path = tmp_path / f"resolved.{suffix}"
        path.write_text(text)
        again = load_config(path)
        assert again == config
        assert to_plain(again) == to_plain(config)
    build_sampler(config.sampler)


def test_the_resolved_configuration_names_every_option() -> None:
    plain = to_plain(load_config("brackets-t4-dqa"))
    assert plain["task"]["name"] == "brackets"
    assert plain["sampler"]["backend"] == "dqa"
    assert (plain["sampler"]["engine"], plain["sampler"]["learn_schedule"]) == ("native", False)
    assert plain["training"]["schedule_learning_rate"] == 1e-3
    assert set(plain["task"]) == {"name", *(f.name for f in dataclasses.fields(BracketOptions))}


def test_a_configuration_is_found_by_path_by_name_and_by_run_folder(tmp_path: Path) -> None:
    assert find_config("brackets-t8") == find_config("brackets-t8.yaml") == shipped_configs()["brackets-t8"]
    (tmp_path / "config.json").write_text(json.dumps(to_plain(make_config({"seed": 9}))))
    assert load_config(tmp_path).seed == 9
    with pytest.raises(ConfigError, match=r"'brackets-t9': no such file, .* Did you mean 'brackets-t"):
        find_config("brackets-t9")
    with pytest.raises(ConfigError, match=r"'zzz': no such file, .* Shipped are anneal, brackets-small, "):
        find_config("zzz")


def test_a_path_that_exists_wins_over_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fidelity").write_text("seed: 7\n")
    assert load_config("fidelity").seed == 7


def test_overrides_reach_every_kind_of_section() -> None:
    overrides = ["task.name=shakespeare", "task.window=6", "model.mode=h", "sampler.backend=dqa",
                 "sampler.steps=9", "fidelity.backends.b.backend=exact", "fidelity.sizes=[3]"]  # fmt: skip
    config = make_config({})
    config = load_config("fidelity", [*overrides, "fidelity.backends.dqa-5ns=null"])
    assert config.task == ShakespeareOptions(window=6)
    assert to_plain(config)["model"]["mode"] == "h"
    assert config.sampler.options["steps"] == 9
    shipped = set(load_config("fidelity").fidelity.backends)
    assert set(config.fidelity.backends) == (shipped | {"b"}) - {"dqa-5ns"}
    assert config.fidelity.sizes == (3,)


def test_the_built_objects_are_those_of_the_configuration() -> None:
    config = make_config(
        SMALL | {"sampler": {"backend": "mean_field", "damping": 0.5}, "model": {"embed_dim": 8}}
    )
    sampler = build_sampler(config.sampler)
    assert (sampler.name, vars(sampler)["damping"]) == ("mean_field", 0.5)
    task = build_task(config)
    assert (task.name, task.window, len(task.train)) == ("brackets", 4, 16)
    model = build_model(config, task, sampler)
    assert model.attention_layers()[0].sampler is sampler
    assert model.options == config.model


def test_options_of_the_annealing_backend_reach_it() -> None:
    options = {"betas": [9.0, 10.0], "noise": [0.01, 0.02], "engine": "torch",
               "learn_schedule": True, "annealing_time_ns": 2.0}  # fmt: skip
    config = make_config(SMALL | {"sampler": {"backend": "dqa", **options}, "model": {"embed_dim": 8}})
    sampler = build_sampler(config.sampler)
    assert isinstance(sampler, DQASampler)
    assert tuple(sampler.betas) == (9.0, 10.0)
    assert tuple(sampler.noise) == (0.01, 0.02)
    assert (sampler.engine.name, len(list(sampler.parameters()))) == ("torch", 1)
    model = build_model(config, build_task(config), sampler)
    assert any("schedule_angles" in name for name, _ in model.named_parameters())
    assert make_config(to_plain(config)) == config


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("{backend: tempering, betas: [0.0, 0.5, 1.0], sweeps: 12, method: metropolis}",
     {"ladder": [0.0, 0.5, 1.0], "sweeps": 12, "method": "metropolis"}),
    ("{backend: refine, sampler: exact, options: {max_seconds: 7.0}, sweeps: 3}",
     {"base.name": "exact", "base.max_seconds": 7.0, "sweeps": 3}),
    ("{backend: distributed, sampler: dqa, options: {steps: 9, annealing_time_ns: 0.2}, workers: 0, chunk: 5}",
     {"base.name": "dqa", "base.plan.steps": 9, "chunk": 5}),
    ("{backend: distributed, sampler: refine, options: {sampler: exact}}",
     {"base.name": "refine", "base.base.name": "exact"}),
    ("{backend: dimod, sampler: 'diabat.samplers.dimod.tiled:TiledComposite', parameters: {annealing_time: 7}, "
     "beta: [2.0, 3.0], options: {child: 'diabat.testing.strict_qpu:StrictMockQPU', spins: 4, "
     "child_options: {topology_type: zephyr, topology_shape: [2, 4]}}}",
     {"target.__class__.__name__": "TiledComposite", "capabilities.max_spins": 4, "betas": (2.0, 3.0)}),
]  # fmt: skip


@pytest.mark.parametrize(("section", "expected"), OPTIONS, ids=range(len(OPTIONS)))
def test_options_reach_every_kind_of_backend(section: str, expected: dict[str, Any]) -> None:
    built = build_sampler(make_config(parse_yaml(f"sampler: {section}", "text")).sampler)
    for name, value in expected.items():
        found = attrgetter(name)(built)
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value


def test_the_seed_decides_the_initial_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        config = make_config(SMALL | {"seed": seed})
        return next(iter(build_model(config, build_task(config)).parameters())).detach()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def _register(monkeypatch: pytest.MonkeyPatch, factory: Callable[..., Any]) -> Config:
    monkeypatch.setitem(registry._registered, "third_party", factory)
    return make_config({"sampler": {"backend": "third_party", "path": "x"}})


def test_options_of_a_third_party_backend_come_from_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(path, *, depth: Unresolvable = 3, **unused):  # type: ignore[no-untyped-def, name-defined]  # noqa: F821 - that is the test
        return diabat.sampler("exact")

    config = _register(monkeypatch, factory)
    assert config.sampler.options == {"path": "x", "depth": 3}
    with pytest.raises(ConfigError, match=r"sampler\.path: this key is required"):
        make_config({"sampler": {"backend": "third_party"}})
    with pytest.raises(ConfigError, match=r"sampler\.dept: unknown key\. Did you mean 'sampler\.depth'"):
        make_config({"sampler": {"backend": "third_party", "path": "x", "dept": 1}})


PARSED: dict[str, tuple[tuple[str, ...], Any]] = {
    "sampler.backend=dqa": (("sampler", "backend"), "dqa"),
    "training.learning_rate=1e-3": (("training", "learning_rate"), 1e-3),
    "fidelity.sizes=[4, 8]": (("fidelity", "sizes"), [4, 8]),
    "training.max_steps=null": (("training", "max_steps"), None),
    "output=a=b": (("output",), "a=b"),
    'output="1"': (("output",), "1"),
    "fidelity.backends.dqa-5ns.steps=3": (("fidelity", "backends", "dqa-5ns", "steps"), 3),
}
MALFORMED = {
    "seed": r"override 'seed': expected KEY=VALUE, for example",
    "=3": r"override '=3': expected KEY=VALUE",
    "a..b=3": r"override 'a\.\.b=3': expected KEY=VALUE",
    "seed=": r"override 'seed=': expected a value after '=', got nothing; write seed=null",
    "seed=[1": r"override 'seed=\[1': did not find expected ',' or '\]'\.",
    "sampler={backend: dqa}": r"expected a scalar or a list, got a mapping",
    "seed.deep=1": r"override seed\.deep: expected a section at 'seed', got 3 \(integer\)",
}


def test_an_override_is_a_key_and_a_yaml_value() -> None:
    assert {text: parse_override(text) for text in PARSED} == PARSED
    for text, message in MALFORMED.items():
        with pytest.raises(ConfigError, match=message) as caught:
            apply_overrides({"seed": 3}, [text])
        assert "\n" not in str(caught.value)


def test_the_last_override_wins_and_the_document_is_left_alone() -> None:
    document: dict[str, Any] = {"training": {"seed": 0}}
    assert apply_overrides(document, ["training.seed=1", "training.seed=2"]) == {"training": {"seed": 2}}
    assert document == {"training": {"seed": 0}}


def test_overrides_make_missing_and_empty_sections() -> None:
    found = apply_overrides({"model": None}, ["model.mode=h", "a.b.c=1"])
    assert found == {"model": {"mode": "h"}, "a": {"b": {"c": 1}}}


@pytest.mark.parametrize("order", [1, -1])
def test_another_backend_drops_the_options_of_the_old_one(order: int) -> None:
    overrides = ["sampler.backend=dqa", "sampler.annealing_time_ns=7"][::order]
    document = {"sampler": {"backend": "exact", "memory_budget_mb": 64}}
    assert apply_overrides(document, overrides) == {"sampler": {"backend": "dqa", "annealing_time_ns": 7}}
    assert apply_overrides(document, ["sampler.backend=exact"]) == document


@pytest.mark.parametrize("kinds", [TASKS, MODELS], ids=["tasks", "models"])
def test_options_have_the_name_of_their_entry(kinds: dict[str, Any]) -> None:
    assert [options().name for options in kinds.values()] == list(kinds)


@pytest.mark.parametrize("task", TASKS)
def test_the_model_follows_from_the_task_unless_it_is_named(task: str) -> None:
    document = {"task": {"name": task}}
    config = make_config(document)
    assert config == make_config({**document, "model": {"name": config.model.name}})
    assert to_plain(config)["model"]["name"] == config.model.name


def fields_of(kind: Any, prefix: str) -> set[str]:
    """Keys of the fields of a dataclass and of the dataclasses in them, from their types."""
    found = set()
    for name, hint in ((f.name, get_type_hints(kind)[f.name]) for f in dataclasses.fields(kind)):
        found.add(f"{prefix}.{name}")
        for inner in filter(dataclasses.is_dataclass, get_args(hint)):  # e.g. CouplingInit | None
            found |= {f"{prefix}.{name}.{f.name}" for f in dataclasses.fields(inner)}
    return found


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("backend", [name for name in registry._BUILT_IN])
def test_the_keys_read_from_the_source_are_those_of_the_classes(task: str, backend: str) -> None:
    config = make_config({"task": {"name": task}})
    expected = {
        *Config.model_fields,
        *fields_of(type(config.task), "task"),
        *fields_of(type(config.model), "model"),
    }
    for section in ("training", "fidelity", "anneal"):
        expected |= fields_of(type(getattr(config, section)), section)
    options = ("backend", *inspect.signature(registry.backend_factory(backend)).parameters)
    expected |= {f"{place}.{name}" for place in ("sampler", "fidelity.backends.a") for name in options}
    document = {"task": {"name": task}, "sampler": {"backend": backend}}
    assert set(valid_keys(document | {"fidelity": {"backends": {"a": {"backend": backend}}}})) == expected
