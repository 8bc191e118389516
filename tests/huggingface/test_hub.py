"""Names of models: on the hub, folders, and folders of packages, which are not imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from diabat.huggingface.hub import resolve


@pytest.mark.parametrize(("name", "message"), [
    ("/no/such/folder", "expected the name of a model or a folder, got '/no/such/folder'"),
    ("https://me:hf_secret@huggingface.co/x", "expected the name of a model or a folder, got an address"),
    ("package:no_such_thing/model", "expected an installed .* got 'no_such_thing'; pip install no-such-thing"),
    ("package:json/x", r"expected a folder with config\.json, got 'package:json/x' without one"),
    (str(Path(__file__).parent), r"expected a folder with config\.json"),
])  # fmt: skip
def test_names_of_no_model_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"model: {message}") as caught:
        resolve(name, "model")
    assert "hf_secret" not in str(caught.value)


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("bert-base-uncased", "model") == "bert-base-uncased"
    folder = tmp_path / "some_weights" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "some_weights" / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    assert resolve(str(folder), "model") == str(folder)
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("package:some_weights/model", "model") == str(folder)
