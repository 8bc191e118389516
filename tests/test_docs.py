"""README and docs: Python blocks run, links lead somewhere, commands parse."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shlex
import tomllib
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cli_runs import COMMANDS, run
from markdown_it import MarkdownIt
from typer.core import TyperGroup

from diabat.cli.arguments import config_and_overrides
from diabat.documents.overrides import apply_overrides
from diabat.documents.yaml_files import parse_yaml
from diabat.heads.commands.analysis import AnalysisOptions, read_options
from diabat.heads.commands.attribution import AttributionOptions
from diabat.heads.commands.calibration import CalibrationOptions
from diabat.lab.config import load_config, shipped_configs
from diabat.lab.config.loading import make_config
from diabat.testing import ConformanceError

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
    ROOT / "docs/tutorials/index.md",
]
PAGES = [page for page in PAGES if page.name != "cli.md"]  # written by the build of the site
HEADS: dict[str, Any] = {
    "analyse": AnalysisOptions, "attribute": AttributionOptions, "calibrate": CalibrationOptions
}  # fmt: skip
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    first_line: int
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    content = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```(\w*|\{eval-rst\})\n(.*?)^```$", content, re.MULTILINE | re.DOTALL):
        line = content.count("\n", 0, match.start(2)) + 1
        found.append(Block(page, match[1], line, match[2]))
    return [block for block in found if not languages or block.language in languages]


RUN = [page for page in PAGES if blocks(page, "python")]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


READABILITY = """
# A heading of five words

Three words here:

- one and two
  and three. Four five.
- six seven

$$
h_j = 1. x = 2.
$$

| a | b c d |

Until the end ($$ E = 1 $$ is no block). So [it goes](there.md).

```sh
echo $$
echo that is left out
```
"""


def words_of_sentences(text: str) -> list[int]:
    found: list[int] = runpy.run_path(str(ROOT / "scripts/readability.py"))["sentences"](text)
    return found


def test_words_of_a_sentence_are_those_of_prose() -> None:
    """Items of lists are sentences; headings, tables, formulas and code are none."""
    assert words_of_sentences(READABILITY) == [3, 5, 2, 2, 11, 3]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_have_fifteen_words_on_average(page: Path) -> None:
    words = words_of_sentences(page.read_text(encoding="utf-8"))
    assert sum(words) <= 15 * len(words)


def test_a_letter_that_describes_an_argument_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pages of the reference."""
    napoleon = pytest.importorskip("sphinx.ext.napoleon", reason="the extra 'docs' is not installed")
    monkeypatch.setattr("urllib.request.urlopen", offline)
    as_written = runpy.run_path(str(ROOT / "docs" / "conf.py"))["as_written"]
    lines = ["Heads.", "", "Args:", "    num_heads: H.", "    sizes: n and |S|."]
    whole = ["Q."]
    for text in (lines, whole):
        as_written(None, "class", "", None, None, text)
    assert whole == [r"\Q."]
    docutils = pytest.importorskip("docutils.core")
    html = docutils.publish_string(str(napoleon.GoogleDocstring(lines)), writer="html").decode()
    assert "<ol" not in html
    assert '<td class="field-body">H.</td>' in html


def offline(*given: Any, **options: Any) -> Any:
    raise OSError


MARKER = re.compile(r"(\s*)([-+*]|\d+[.)]) ")


def stray_markers(text: str) -> list[str]:
    """Lines that Markdown reads as items of a list although they continue a sentence: `+ J s s`."""
    found, block = [], list[str]()
    for line in re.sub(r"^(```|\$\$).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        if (marker := MARKER.match(line)) and block:
            before = [other for one in block if (other := MARKER.match(one))]
            same = any((o[1], o[2][-1]) == (marker[1], marker[2][-1]) for o in before)
            if not same and not (before and block[-1].rstrip().endswith(":")):
                found.append(line)
        block = [*block, line] if line.strip() else []
    return found


def open_emphasis(text: str) -> list[str]:
    """Text in which Markdown leaves an asterisk that touches a word: emphasis that is not closed, or a formula."""
    plain = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)
    tokens = MarkdownIt("commonmark").enable("table").parse(plain)
    pieces = [child.content for token in tokens for child in token.children or [] if child.type == "text"]
    return [piece for piece in pieces if re.search(r"[^\s(]\*|\*[^\s)]", piece)]


@pytest.mark.parametrize(("text", "stray", "stars"), [
    ("the sum of c\n+ J s", ["+ J s"], []),
    ("the value at n =\n8) and", ["8) and"], []),
    ("a list:\n\n- one\n- two\n  more", [], []),
    ("- one:\n  - inner", [], []),
    ("- one (1\n  - p)", ["  - p)"], []),
    ("*all of it", [], ["*all of it"]),
    ("*all* of `*it` and $x^*$, 2 *", [], []),
])  # fmt: skip
def test_what_these_checks_find(text: str, stray: list[str], stars: list[str]) -> None:
    assert (stray_markers(text), open_emphasis(text)) == (stray, stars)


@pytest.mark.parametrize(
    "page", [*LINKED, *sorted((ROOT / "docs/tutorials").glob("*.ipynb"))], ids=lambda p: p.name
)
def test_no_sentence_becomes_a_list(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    texts = [content]
    if page.suffix == ".ipynb":
        cells = json.loads(content)["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert [line for text in texts for line in stray_markers(text)] == []
    assert [piece for text in texts for piece in open_emphasis(text)] == []


def commands() -> list[tuple[str, str]]:
    """Every line of a shell block that calls diabat, with its place."""
    return [
        (f"{block.page.name}:{block.first_line + offset}", line)
        for page in PAGES
        for block in blocks(page, "sh")
        for offset, line in enumerate(block.text.splitlines())
        if line.startswith("diabat ")
    ]


CHARACTERS = re.compile(r"[Σ∝√∂≤≥∈⁻ᵀ]|\b[a-zA-Zα-ωΔ]_[a-zA-Z{(]|\b\w\^[a-zA-Z{(]")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_formulas_are_mathematics(page: Path) -> None:
    """Outside of code and `$` there are neither sums and roots in Unicode nor indices and powers in ASCII."""
    text = re.sub(r"\$\$.*?\$\$", "", prose(page), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|\$[^$\n]+(\n[^$\n]+)?\$|!\[[^]]*\]|\]\([^)]*\)", "", text)
    indented = "    "  # a block of code
    assert [line for line in text.splitlines() if CHARACTERS.search(line) and line[:4] != indented] == []


def test_every_block_is_of_a_language_that_is_looked_at() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    assert {block.language for block in found} <= {"python", "sh", "toml", "yaml", "{eval-rst}"}
    assert len(RUN) >= 3
    assert sum(page.read_text(encoding="utf-8").count("```") for page in PAGES) == 2 * len(found)
    for block in found:
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language == "yaml":  # part of a configuration
            make_config(parse_yaml(block.text, f"{block.page.name}:{block.first_line}"))


@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(ROOT)) for page in RUN])
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those of the README print what stands beside them."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "docs"}
    checked, readme = 0, page.name == "README.md"
    for block in blocks(page, "python"):
        if "import xarray" in block.text and find_spec("xarray") is None:  # no dependency of any extra
            continue
        last = block.text.rstrip().splitlines()[-1]
        refuses = "ConformanceError" in last.partition("#")[2]
        # Empty lines in front, so that a traceback shows the line of the page.
        code = compile("\n" * (block.first_line - 1) + block.text, str(page), "exec")
        with pytest.raises(ConformanceError) if refuses else nullcontext():
            exec(code, namespace)
        out = capsys.readouterr().out.splitlines()
        assert not readme or not out or out == printed(block.text)
        checked += len(out)
    assert not readme or checked >= 7


def printed(text: str) -> list[str]:
    """What a block says that it prints: the comments behind its print statements, and lines of comment."""
    return re.findall(r"^(?:print\(.*\)  )?# (.*)$", text, re.MULTILINE)


def test_the_answer_in_the_backends_page_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in blocks(ROOT / "docs" / "backends.md", "sh") if "frustrated.yaml" in b.text]
    problem, command, said = re.findall(r"\Aecho '(.*?)' > \S+\ndiabat (.*?)\n(.*)\Z", block.text, re.DOTALL)[
        0
    ]
    Path("frustrated.yaml").write_text(problem)
    out = run(*shlex.split(command)).stdout.splitlines()
    assert len(said.splitlines()) == 3
    for line in said.splitlines():
        assert line.removeprefix("# ") in out


def test_relative_links_lead_to_files() -> None:
    missing = []
    for page in LINKED:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            there = (
                linked.is_relative_to(ROOT) and linked.exists() and (not anchor or anchor in slugs(linked))
            )
            if "://" not in target and not there:
                missing.append(f"{page.name}: {target}")
    assert not missing


@cache
def slugs(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def listed() -> list[Path]:
    """The pages that the tables of contents of the site name, without suffix."""
    trees = [
        (page.parent, entry)
        for page in PAGES
        for tree in re.findall(r"^:::\{toctree\}\n(.*?)^:::$", page.read_text(encoding="utf-8"), re.M | re.S)
        for entry in re.findall(r"^(?!:)(?:.*<)?([\w/-]+)>?$", tree, re.MULTILINE)
    ]
    return [(folder / entry).resolve() for folder, entry in trees]


def test_every_page_stands_in_one_table_of_contents() -> None:
    pages = [*PAGES, *(ROOT / "docs/tutorials").glob("*.ipynb")]
    inner = {page.with_suffix("") for page in pages} - {ROOT / "README", ROOT / "docs/index"}
    assert sorted(listed()) == sorted({*inner, ROOT / "docs/reference/cli"})


def test_pages_are_short_and_have_titles_of_their_own() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    assert {page.name for page, text in texts.items() if text.count("\n") > 250} == set()
    books = [
        json.loads(page.read_text(encoding="utf-8")) for page in (ROOT / "docs/tutorials").glob("*.ipynb")
    ]
    heads = [prose(page) for page in PAGES if page.parent != ROOT]
    heads += ["".join(book["cells"][0]["source"]) for book in books]
    titles = [title for text in heads for title in re.findall("^# (.*)$", text, re.MULTILINE)[:1]]
    assert [title for title in titles if titles.count(title) > 1] == []


def figures(page: Path) -> list[set[str]]:
    """Numbers of three digits and more of each row and paragraph, without those near 1, which coincide."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\$[^$\n]+\$", " ", prose(page))
    lines = re.sub(r"\n(?![\n|*-])", " ", text).splitlines()
    numbers = [{n.lstrip("0") for n in re.findall(r"(?<![\w.,/-])\d*\.\d+(?![\w.])", line)} for line in lines]
    return [
        {n for n in of if len(n.replace(".", "").lstrip("0")) > 2 and not 0.95 <= float(n) <= 1.05}
        for of in numbers
    ]


def test_no_page_repeats_the_numbers_of_another() -> None:
    """Three numbers of a row or paragraph that stand together on another page were copied: one of them keeps them."""
    found = {page.name: figures(page) for page in PAGES}
    pairs = itertools.combinations(found, 2)
    assert [
        (a, b, shared) for a, b in pairs for x in found[a] for y in found[b] if len(shared := x & y) > 2
    ] == []


def test_files_and_make_targets_named_in_the_text_exist() -> None:
    folders = "diabat|docs|tests|examples|benchmarks|experiments|fuzz|scripts"
    rules = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    missing = []
    for page in LINKED:
        text = page.read_text(encoding="utf-8")
        files = re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", text)
        missing += [f"{page.name}: {name}" for name in files if not (ROOT / name).exists()]
        targets = re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE)
        missing += [f"{page.name}: make {name}" for name in targets if name not in rules]
    assert not missing


def test_commands_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for place, line in commands():
        try:
            parse(place, line)
        except (Exception, SystemExit) as error:
            wrong[place, line] = repr(error)
    assert not wrong
    assert len(commands()) >= 5


def parse(place: str, line: str) -> None:
    """Refuse a command line that the program would refuse, and a configuration that it names."""
    command, arguments = COMMANDS, shlex.split(line, comments=True)[1:]
    while isinstance(command, TyperGroup):
        name = arguments.pop(0)
        assert name in command.commands, f"{place}: no command '{name}'"
        command = command.commands[name]
    values = command.make_context(line, arguments).params  # refuses unknown options and missing arguments
    config, changes = config_and_overrides(values.get("config"), values.get("overrides"))
    if "options" in values:
        read_options(HEADS[name], values["options"] or ())
    elif (config := config or (name if name in shipped_configs() else None)) is None:
        make_config(apply_overrides({}, changes))
    elif "/" not in config:  # else the folder of a run
        load_config(config, changes)


def test_commands_named_in_the_text_exist() -> None:
    for page in PAGES:
        for words in re.findall(r"`diabat ([a-z]+(?:[ -][a-z]+)*)\b", page.read_text(encoding="utf-8")):
            command: Any = COMMANDS
            for name in words.split():
                if isinstance(command, TyperGroup):
                    assert name in command.commands, f"{page.name}: no command 'diabat {words}'"
                    command = command.commands[name]
