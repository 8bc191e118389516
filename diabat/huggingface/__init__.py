"""Hugging Face models: attention that is calibrated by what games on its heads say.

With transformers installed (the extra ``hf``), importing this package registers ``attn_implementation="gac"``.
"""

from importlib.util import find_spec

from diabat.huggingface.attention import register_gac
from diabat.huggingface.enabling import disable_gac, enable_gac
from diabat.huggingface.state import load_gac, read_gac, save_gac

__all__ = ["disable_gac", "enable_gac", "load_gac", "read_gac", "register_gac", "save_gac"]

# Without it the functions name the extra; the modules can be imported.
if find_spec("transformers") is not None:
    register_gac()
