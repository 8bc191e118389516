"""The site: `make docs` builds it, with warnings as errors."""

import inspect
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

import diabat

HERE = Path(__file__).parent

project = "diabat"
author = "The diabat maintainers"
version = release = diabat.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",  # MathJax from the site itself
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "reference/generated/*.inc"]
templates_path = ["_templates"]

autosummary_ignore_module_all = False
autodoc_typehints = "none"  # docstrings give types, shapes and dtypes; signatures stay short
autodoc_member_order = "bysource"
# Else attributes that a base class describes as well would be described twice.
autodoc_inherit_docstrings = False
toc_object_entries_show_parents = "hide"  # "On this page" says step, not BoltzmannAttention.step
napoleon_use_rtype = False
default_role = "code"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_excludepatterns = ["tutorials/induction.ipynb"]  # six minutes with the pretrained decoder
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_output_stderr = "remove"
nb_merge_streams = True


def reachable(address: str) -> bool:
    """Whether the names of another site can be had; without the net its links are left out."""
    try:
        with urllib.request.urlopen(f"{address}/objects.inv", timeout=10):
            return True
    except OSError:
        return False


OTHERS = {
    "python": "https://docs.python.org/3",
    "torch": "https://docs.pytorch.org/docs/stable",
    "dimod": "https://docs.dwavequantum.com/en/latest",
    "qiskit": "https://quantum.cloud.ibm.com/docs/api/qiskit",
}
intersphinx_mapping = {name: (address, None) for name, address in OTHERS.items() if reachable(address)}

html_theme = "pydata_sphinx_theme"
html_title = "diabat"
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_center": [],  # all pages stand in the sidebar
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_sidebars = {"**": ["pages.html"]}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False


def write_commands(app: Sphinx) -> None:
    """Write reference/cli.md from the help of the commands."""
    page = HERE / "reference" / "cli.md"
    command = [sys.executable, "-m", "typer", "diabat.cli", "utils", "docs", "--name", "diabat"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = text.replace("# `diabat`", "# Command line", 1)
    # In lists typer cuts what a command does at 45 characters; below its heading it stands in full.
    openings = re.findall(r"^#+ `.*`\n\n(.*)$", text, re.MULTILINE)
    for start in re.findall(r": (.*)\.\.\.$", text, re.MULTILINE):
        text = text.replace(f"{start}...\n", next(line for line in openings if line.startswith(start)) + "\n")
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


MARKED = re.compile(r"(\*\*\S.*?\*\*|``.*?``|`.*?`)")
LETTER = re.compile(r"^(\s+[\w, ]+: |)(?=\w\.(\s|$))")  # ``num_heads: H.`` is no item of a list


def as_written(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show docstrings as they stand: formulas are set as they are, ``*batch``, ``|S|`` and ``H.`` are no markup."""
    formula: int | None = None  # indentation of the paragraph above the formula that is being read
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if formula is not None and (not line or indent > formula):
            continue
        ahead = next((text for text in lines[i + 1 :] if text), "")
        introduces = line.endswith(":") and lines[i + 1 : i + 2] != [ahead]
        formula = indent if introduces and ahead.startswith(" " * (indent + 4)) else None
        parts = [
            part if k % 2 else re.sub(r"([*|])", r"\\\1", part) for k, part in enumerate(MARKED.split(line))
        ]
        lines[i] = LETTER.sub(r"\1\\", "".join(parts)) + ":" * (
            formula is not None and not line.endswith("::")
        )


def constructor(app: Sphinx, what: str, name: str, obj: Any, options: Any, shown: str, returned: str) -> Any:
    """Show the signature that Python shows; Sphinx alone prefers ``__new__``, which takes anything."""
    if what != "class":
        return None
    try:
        return stringify_signature(
            inspect.signature(obj), show_annotation=False, show_return_annotation=False
        ), None
    except ValueError:
        return None


def setup(app: Sphinx) -> None:
    """Connect what is written at build time."""
    app.connect("builder-inited", write_commands)
    app.connect("autodoc-process-signature", constructor)
    app.connect("autodoc-process-docstring", as_written, priority=100)  # before napoleon
