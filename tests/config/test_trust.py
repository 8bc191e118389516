"""What a configuration may lead to: own ones to any sampler, those of run folders to local backends only."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from diabat.documents.overrides import parse_override
from diabat.lab.config import ConfigError, load_config, make_config
from diabat.lab.config.trust import LOCAL_BACKENDS
from diabat.lab.runs import build_sampler, load_run
from diabat.lab.runs.studies import attention_ensembles
from diabat.samplers.registry import available_backends
from diabat.secrets import refuse_secrets

MARKER = "diabat_stranger_was_here"
STRANGER = f"""
import sys
import dimod
sys.{MARKER} = True
class Sampler(dimod.ExactSolver):
    pass
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a sampler whose module leaves a mark when it is imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "strange_module.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    monkeypatch.setattr(sys, MARKER, False, raising=False)
    return "strange_module:Sampler"


def dimod_section(name: str, **more: Any) -> dict[str, Any]:
    return {"backend": "dimod", "sampler": name, "beta": 1.0, **more}


def run_folder(tmp_path: Path, sampler: dict[str, Any], **more: Any) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"sampler": sampler, **more}))
    return folder


# what is called


@pytest.mark.parametrize(("name", "kind"), [
    ("os:system", "a builtin_function_or_method"),
    ("subprocess:Popen", "the class Popen"),
    ("dimod:to_networkx_graph", "a function"),
    ("dimod:BinaryQuadraticModel", "the class BinaryQuadraticModel"),
    ("diabat.samplers.exact:ExactSampler", "the class ExactSampler"),
])  # fmt: skip
def test_only_classes_of_dimod_samplers_are_called(name: str, kind: str, tmp_path: Path) -> None:
    section = dimod_section(name, options={"command": f"touch {tmp_path / 'mark'}"})
    expected = f"sampler: expected the name of a class of dimod samplers, got '{name}', {kind}."
    with pytest.raises(ConfigError, match=re.escape(expected)):
        build_sampler(make_config({"sampler": section}).sampler)
    assert not (tmp_path / "mark").exists()


def test_a_module_that_fails_to_import_is_one_sentence(stranger: str, tmp_path: Path) -> None:
    (tmp_path / "modules" / "strange_module.py").write_text("raise RuntimeError('token=abc')")
    with pytest.raises(ConfigError, match=r"cannot be imported: RuntimeError: token=\*\*\*\.$"):
        build_sampler(make_config({"sampler": dimod_section(stranger)}).sampler)


# what a run folder may name


def nested(backend: str, **options: Any) -> dict[str, Any]:
    return {"backend": backend, "sampler": "dimod", "options": options}


@pytest.mark.parametrize("section", [
    dimod_section("strange_module:Sampler"),
    dimod_section("dimod:ExactSolver"),
    dimod_section("dwave.system:DWaveSampler", options={"endpoint": "evil.example"}),
    nested("refine", sampler="strange_module:Sampler", beta=1.0),
    {"backend": "refine", "sampler": "refine", "options": nested("refine")},
    {"backend": "distributed", "sampler": "exact", "executor": "tcp://evil:8786"},
    {"backend": "of_a_package"},
], ids=["foreign module", "dimod", "endpoint", "refine", "refine twice", "distributed", "registered"])  # fmt: skip
def test_a_run_folder_names_local_backends_only(
    section: dict[str, Any], stranger: str, tmp_path: Path
) -> None:
    """Nothing is imported and nothing connected to; composites pass names on to their base."""
    fidelity = {"fidelity": {"backends": {"theirs": section}}}
    for document, place in (
        ({"sampler": section}, "sampler"),
        ({"sampler": {"backend": "exact"}} | fidelity, r"fidelity\.backends\.theirs"),
    ):
        folder = run_folder(tmp_path, **document)
        for reading in (load_config, load_run, lambda path: attention_ensembles(path, seed=0)):
            with pytest.raises(
                ConfigError,
                match=rf"^{place}\.[a-z.]+: expected one of banded, .* give --trust \(trust=True\)",
            ):
                reading(folder)
    assert not getattr(sys, MARKER)


def test_a_trusted_run_folder_names_any(stranger: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, dimod_section(stranger))
    with pytest.raises(ConfigError, match="accepts num_reads, got Sampler"):  # it is only a stand-in
        build_sampler(load_config(folder, trust=True).sampler)
    assert getattr(sys, MARKER)


@pytest.mark.parametrize("backend", LOCAL_BACKENDS)
def test_local_backends_need_no_trust(backend: str, tmp_path: Path) -> None:
    assert backend in available_backends()
    load_config(run_folder(tmp_path, {"backend": backend}))
    load_config(run_folder(tmp_path, {"backend": "refine", "sampler": backend}))


def test_what_the_caller_names_is_taken(stranger: str, tmp_path: Path) -> None:
    mine = ["sampler.backend=dimod", f"sampler.sampler={stranger}", "sampler.beta=1.0"]
    folder = run_folder(tmp_path, {"backend": "exact"})
    assert load_config(folder, mine).sampler.options["sampler"] == stranger
    folder = run_folder(tmp_path, dimod_section("evil:X"))
    assert load_config(folder, ["sampler.backend=exact"]).sampler.backend == "exact"
    assert load_config(folder, mine).sampler.options["sampler"] == stranger
    own = tmp_path / "own.yaml"
    own.write_text(f"sampler: {{backend: dimod, sampler: '{stranger}', beta: 1.0}}")
    assert load_config(own).sampler.options["sampler"] == stranger


@pytest.mark.parametrize("change", ["sampler.backend=dimod", "sampler.sampler=dimod:ExactSolver"])
def test_a_key_of_the_caller_does_not_trust_the_others(change: str, tmp_path: Path) -> None:
    theirs = dimod_section("dwave.system:DWaveSampler", options={"endpoint": "evil.example"})
    with pytest.raises(ConfigError, match=r"^sampler\.[a-z]+: expected one of banded, "):
        load_config(run_folder(tmp_path, theirs), [change])


# secrets


def test_the_token_of_the_environment_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DWAVE_API_TOKEN", "s3")
    with pytest.raises(ConfigError, match="sampler: expected no token or password in 'label' here"):
        make_config({"sampler": {"backend": "dimod", "parameters": {"label": ["x s3"]}}})


def test_tokenizers_are_no_tokens() -> None:
    for name in ("tokens", "path", "patience", "pattern", "compat", "keys"):
        refuse_secrets("options", {name: "a"})


@pytest.mark.parametrize(
    "text", ["sampler.options={token: s3}", "token=[s3", "a b=1 password=s3", "x.secret="]
)
def test_overrides_are_not_shown_with_secrets(text: str) -> None:
    with pytest.raises(ConfigError, match="override '") as caught:
        parse_override(text)
    assert "s3" not in str(caught.value)
