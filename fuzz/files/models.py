"""Files of decoders: calibrations and analyses of heads, folders of models and adapters.

Sizes of a decoder are left alone, since they only say how much memory transformers takes.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from diabat.heads import Calibration, disable_gac, enable_gac, enabled_calibration, load_gac, save_gac
from diabat.heads.commands.analysis import FILE, read_analysis
from diabat.heads.commands.calibration import CalibrationOptions, calibration_of, salient_groups
from diabat.huggingface import convert, load_adapter, load_decoder
from diabat.huggingface.boltzmann.config import FOLDER_SAMPLERS
from fuzz.files.mutations import damaged, other_tensors, tampered
from fuzz.properties import demand, holds, naming
from fuzz.tiny import HEADS, analyse, decoder

Files = dict[str, bytes]
_SETTINGS = (
    Calibration({0: [1], 1: ()}),
    Calibration({1: range(HEADS)}, alpha=0.05, beta=0.3, rows="prompt", redistribution="uniform"),
)


@cache
def _calibrations() -> list[bytes]:
    files, model = [], decoder()
    with tempfile.TemporaryDirectory() as folder:
        for setting in _SETTINGS:
            enable_gac(model, setting)
            files.append(save_gac(model, folder).read_bytes())
    disable_gac(model)
    return files


@holds
def gac_file(draw: st.DrawFn, folder: Path) -> None:
    """``gac.json``: the calibration that it describes, or a sentence with its name, and the model as it was."""
    content = draw(damaged(_calibrations(), is_json=True))
    (folder / "gac.json").write_bytes(content)
    model, loaded = decoder(), None
    try:
        with naming("gac.json"):
            loaded = load_gac(model, folder)
    finally:
        on = enabled_calibration(model)
        disable_gac(model)
        demand(on == loaded, f"calibration: expected {loaded} enabled, got {on}")
    described, stored = (json.loads(one) for one in (content, _calibrations()[0]))
    demand(loaded == Calibration.from_dict(described["calibration"]), f"calibration: got {loaded}")
    for name in ("configuration", "adapters"):
        got = described["model"].get(name)
        demand(got == stored["model"][name], f"model: expected a refusal of another {name}, {got}")


@cache
def _analysed() -> bytes:
    """The analysis of two layers."""
    with tempfile.TemporaryDirectory() as folder:
        analyse(Path(folder) / "run")
        return (Path(folder) / "run" / FILE).read_bytes()


@holds
def analysis(draw: st.DrawFn, folder: Path) -> None:
    """An analysis of heads: salient groups of its players, or a sentence with its name."""
    path = folder / FILE
    path.write_bytes(draw(damaged([_analysed()])))
    with naming(path.name):
        analysed = read_analysis(path)
    method: Any = draw(st.sampled_from(["max_dividend", "common", "surrogate"]))
    options = CalibrationOptions(method, evaluations=8)
    groups = salient_groups(analysed, options)
    for group, game in zip(groups, analysed.games, strict=True):
        heads = {head for player in game.players for head in player}
        demand(set(group.heads) <= heads, f"heads: expected some of {heads}, got {group.heads}")
    calibration_of(groups, options)


def _saved(model: Any) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@cache
def _converted() -> Files:
    return _saved(convert(decoder.__wrapped__(), window=3, sampler="mean_field"))


@cache
def _adapted(module: str) -> Files:
    from peft import LoraConfig, get_peft_model

    model = decoder.__wrapped__()
    if module == "boltzmann":
        convert(model, window=3, sampler="mean_field")
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=[module])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers renames
        return _saved(get_peft_model(model, config))


@holds
def model_folder(draw: st.DrawFn, folder: Path) -> None:
    """A model with couplings: one of the backends that only compute and logits, or a sentence."""
    config = json.loads(_converted()["config.json"])
    names = st.sampled_from(["dimod", "dqa", "distributed", "refine", "os:system", "", None, ["exact"]])
    named = names.map(lambda name: config["boltzmann"] | {"sampler": name, "sampler_options": {}})
    settings = (tampered(config["boltzmann"]) | named).map(lambda changed: config | {"boltzmann": changed})
    _write(draw, folder, _converted(), "config.json", settings)
    with naming(""):
        model, _ = load_decoder(str(folder))
    samplers = {part.sampler.name for part in model.modules() if hasattr(part, "sampler")}
    demand(samplers <= set(FOLDER_SAMPLERS), f"sampler: expected {FOLDER_SAMPLERS}, got {samplers}")
    _answers(model)


@holds
def adapter(draw: st.DrawFn, folder: Path) -> None:
    """An adapter: plain LoRA on the model, or a sentence that names it."""
    name = "adapter_config.json"
    files = _adapted("lm_head")
    _write(draw, folder, files, name, tampered(json.loads(files[name])))
    with naming("adapter"):
        model = load_adapter(decoder.__wrapped__(), folder)
    demand(not model.peft_config["default"].megatron_config, "adapter: expected no megatron_config")
    _answers(model)


@holds
def coupled_adapter(draw: st.DrawFn, folder: Path) -> None:
    """An adapter with couplings on the plain model: those of its settings, or a sentence that names it."""
    files = _adapted("boltzmann")
    settings = json.loads(files["boltzmann.json"])["boltzmann"]
    changed = tampered(settings).map(lambda one: {"boltzmann": one})
    _write(draw, folder, files, "boltzmann.json", changed)
    with naming("adapter"):
        model = load_adapter(decoder.__wrapped__(), folder)
    own, asked = model.config.boltzmann, json.loads((folder / "boltzmann.json").read_bytes())["boltzmann"]
    demand(own["sampler"] in FOLDER_SAMPLERS, f"sampler: expected {FOLDER_SAMPLERS}, got {own['sampler']}")
    for name in ("window", "readout", "far"):
        want = asked.get(name, own[name])
        demand(own[name] == want, f"{name}: expected {want}, got {own[name]}")
    _answers(model)


def _answers(model: Any) -> None:
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5]]))


def _write(draw: st.DrawFn, folder: Path, files: Files, config: str, settings: st.SearchStrategy) -> None:
    """Write the files with other settings or other weights."""
    if draw(st.booleans()):
        name = next(name for name in files if name.endswith(".safetensors"))
        files = files | {name: draw(other_tensors(files[name]))}
    else:
        files = files | {config: json.dumps(draw(settings)).encode()}  # with NaN, which JSON does not hold
    for name, content in files.items():
        (folder / name).write_bytes(content)
