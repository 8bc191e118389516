"""Adapters of peft with couplings: no J is lost, and the settings are beside them."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from tiny_decoders import adapted, decoder, logits, prompts

import diabat
from diabat.checks import ArgumentError
from diabat.huggingface import convert, load_adapter

from .methods import FIRST, coupled, couplings, randomised

pytestmark = pytest.mark.filterwarnings("ignore:.*changes what the model computes:UserWarning")
FILE = "boltzmann.json"
FORMS: list[dict[str, Any]] = [
    {"window": 4},
    {"window": 4, "far": "none", "weights": "probability", "bandwidth": 2},
    {"window": 3, "sampler": diabat.sampler("mean_field", max_iterations=60)},
    {"window": None, "rank": 2},
]


def trained(model: Any, **options: Any) -> Any:
    """The model of peft, with couplings of its own."""
    wrapped = adapted(model, modules_to_save=["boltzmann"], **options).eval()
    randomised(wrapped, seed=7)
    return wrapped


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    trained(convert(decoder(), 4)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_the_plain_model_is_converted_as_the_adapter_says(form: dict[str, Any], tmp_path: Path) -> None:
    """Its backend with its options too; and a model that is converted alike takes the adapter as well."""
    model, batch = trained(convert(decoder(), **form)), prompts()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / FILE).read_text()) == {"boltzmann": model.config.boltzmann}
    loaded = load_adapter(decoder(), tmp_path)
    assert loaded.config.boltzmann == model.config.boltzmann
    assert torch.equal(logits(loaded, batch), logits(model, batch))
    again = load_adapter(convert(decoder(), **form), tmp_path)
    assert torch.equal(logits(again, batch), logits(model, batch))
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / FILE).read_bytes() == (tmp_path / FILE).read_bytes()


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"far": "none"}, "expected couplings with far = 'none', as the model has, got far = 'independent' in"),
        ({"weights": "probability"}, "expected couplings with weights = 'probability', .* got weights = 'odds' in"),
        ({"bandwidth": 2}, "expected couplings with bandwidth = 2, as the model has, got bandwidth = 3 in"),
        ({"window": 5}, "expected couplings with window = 5, as the model has, got window = 4 in"),
        ({"window": None}, "expected couplings with window = None, as the model has, got window = 4 in"),
    ],
    ids=str,
)  # fmt: skip
def test_a_model_with_other_settings_refuses_the_adapter(
    others: dict[str, Any], sentence: str, adapter: Path
) -> None:
    model = convert(decoder(), **{"window": 4} | others)
    with pytest.raises(ArgumentError, match=f"^adapter: {sentence}"):
        load_adapter(model, adapter)


def test_defaults_that_are_spelled_out_are_the_same_settings(adapter: Path, tmp_path: Path) -> None:
    """And the backend is chosen in code."""
    load_adapter(convert(decoder(), 4, "mean_field", bandwidth=3), adapter)
    trained(convert(decoder(), None)).save_pretrained(tmp_path)
    load_adapter(convert(decoder(), None, couplings="tokens", rank=8, bandwidth=1), tmp_path)


def test_an_adapter_without_settings_is_not_guessed_at(adapter: Path) -> None:
    """As those that were saved before the file existed: the model says how, and nobody can compare."""
    (adapter / FILE).unlink()
    with pytest.raises(
        ArgumentError,
        match=r"^adapter: expected boltzmann.json beside .*got '.*' without it; convert the model",
    ):
        load_adapter(decoder(), adapter)
    with pytest.warns(
        UserWarning, match=r"^adapter: '.*' has couplings without boltzmann.json; .*cannot be checked"
    ):
        model = load_adapter(convert(decoder(), 4), adapter)
    assert torch.equal(logits(model, prompts()), logits(trained(convert(decoder(), 4)), prompts()))


def test_couplings_that_stayed_in_the_model_are_missed(tmp_path: Path) -> None:
    """An adapter of projections alone, beside a model whose J it does not hold."""
    model = adapted(coupled())
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load_adapter(coupled(), tmp_path), prompts()), logits(model.eval(), prompts()))
    with pytest.raises(
        ArgumentError, match=r"^model: expected the model with couplings that .*got LlamaFor.* without"
    ):
        load_adapter(decoder(), tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "expected JSON in '.*boltzmann.json', got: Expecting"),
        ("[]", r"expected settings as 'boltzmann' in '.*boltzmann.json', got \[\]"),
        ('{"boltzmann": null}', "expected settings as 'boltzmann' in '.*boltzmann.json', got {'boltzmann': None}"),
        ('{"boltzmann": {"window": 0}}', "expected settings in '.*boltzmann.json', got: window: expected an integer"),
        ('{"boltzmann": {"window": 40}}', "expected settings in .*, got: window: sampler 'exact' accepts at most"),
        ('{"boltzmann": {"sampler": "dqa"}}', "expected settings in .*got 'dqa'; .*, convert.model, sampler=...."),
    ],
)  # fmt: skip
def test_settings_that_are_refused(content: str, sentence: str, adapter: Path) -> None:
    (adapter / FILE).write_text(content)
    model = decoder()
    with pytest.raises(ArgumentError, match=f"^adapter: {sentence}"):
        load_adapter(model, adapter)
    assert type(model) is type(decoder())


def test_every_adapter_has_the_settings_of_its_own_model(tmp_path: Path) -> None:
    """One configuration may serve several models, with couplings or without, and a model several adapters."""
    shared = LoraConfig(target_modules=["q_proj"], modules_to_save=["boltzmann"], task_type="CAUSAL_LM")
    models = {window: get_peft_model(convert(decoder(), window), shared) for window in (3, 4)}
    for window, model in models.items():
        model.add_adapter("second", shared)
        model.train().save_pretrained(tmp_path / str(window))
        for folder in (tmp_path / str(window), tmp_path / str(window) / "second"):
            assert json.loads((folder / FILE).read_text())["boltzmann"]["window"] == window
    shared.modules_to_save = None
    get_peft_model(decoder(), shared).save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / FILE).exists()
    other = copy.deepcopy(models[3])
    pickle.loads(pickle.dumps(other)).save_pretrained(tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / FILE).read_text())["boltzmann"]["window"] == 3


def test_adapters_of_transformers_itself(tmp_path: Path) -> None:
    model = convert(decoder(), 4)
    model.add_adapter(LoraConfig(target_modules=["q_proj"], modules_to_save=["boltzmann"]))
    randomised(model).save_pretrained(tmp_path)
    loaded = load_adapter(decoder(), tmp_path)
    assert torch.equal(logits(loaded, prompts()), logits(model, prompts()))


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_saving_warns_of_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """peft reads the configuration of the plain model as one with couplings, to compare vocabularies."""
    decoder(name).save_pretrained(tmp_path / "plain")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    model = trained(convert(plain, 4))
    logger = "transformers.configuration_utils.logger.warning"
    monkeypatch.setattr(logger, lambda text, *_: pytest.fail(text))
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ArgumentError, match="expected the settings of a converted model, got None"):
        type(model.base_model.model).from_pretrained(tmp_path / "plain")


def test_merged_adapters_leave_a_model_with_its_couplings(adapter: Path) -> None:
    merged = load_adapter(decoder(), adapter).merge_and_unload()
    expected = couplings(trained(convert(decoder(), 4)))
    assert torch.equal(
        couplings(merged)[FIRST], expected[f"base_model.model.{FIRST}.modules_to_save.default"]
    )
