import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from diabat.config import ConfigError, yaml_files
from diabat.config.yaml_files import MAX_BYTES, dump_yaml, parse_yaml, read_mapping

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aZ01eé:#-~'\" \n[{,.&*!|>%@`")
    | st.sampled_from(
        ["1e3", "yes", "no", "null", "~", "", "0x10", "1_000", "2026-01-01", "1:30", "true", "=", "<<"]
    )
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("3.0e-05", 3e-5),
        ("5.", 5.0),
        ("-.5", -0.5),
        ("010", 10),
        ("+7", 7),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("h+J", "h+J"),
        ("~", None),
        ("null", None),
        ("[1, 0.5, a]", [1, 0.5, "a"]),
        ("'1e3'", "1e3"),
    ],
)
def test_scalars_have_the_types_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "text")
    assert parsed == value
    assert type(parsed) is type(value)


@settings(derandomize=True, database=None)
@given(st.dictionaries(st.text("abc_", min_size=1), SCALARS | st.lists(SCALARS)))
def test_what_is_dumped_is_read_back(value: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(value), "text") == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", r"'.*bad\.yaml', line 3: expected ',' or '\]'"),
        ("seed: 1\nseed: 2\n", r"'.*bad\.yaml', line 2: the key 'seed' is given twice"),
        ("task:\n  name: a\n  name: b\n", r"'.*bad\.yaml', line 3: the key 'name' is given twice"),
        ("1: a\n", r"line 1: expected a name as key, got 1"),
        ("", r"'.*bad\.yaml': the file is empty\."),
        ("# only a comment\n", r"'.*bad\.yaml': the file is empty\."),
        ("- a\n- b\n", r"expected a mapping of keys to values, got a list"),
        ("a: !!python/object:os.system {}\n", r"line 1: could not determine a constructor"),
        ("a: \tb\n\tc: 1\n", r"line 1: expected spaces, got a tab\."),
        ("a: @b\n", r"line 1: expected a value, got the character '@'\."),
        ("a: 1\n---\nb: 2\n", r"line 2: expected one document, got another\."),
        ("a: [1, 2\n", r"line 2: expected ',' or '\]', got the end of the text\."),
        ("a: b: c\n", r"line 1: expected no key here; check the indentation, and quote text with ': '\."),
        ("a:\n  b: 1\n c: 2\n", r"line 3: expected the indentation of the lines above, got another\."),
        ("a: 1\nb\n", r"line 3: expected ':' after a key, got none\."),
        (f"a: {2**63}\n", r"line 1: expected an integer of 64 bits, got 9223372036854775808 \(19 digits\)\."),
        (f"a: -{'9' * 5000}\n", r"expected an integer of 64 bits, got -9+\.\.\. \(5000 digits\)\."),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_mapping(path)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"'{tmp_path / 'none.yaml'}': no such file.")):
        read_mapping(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="expected a file, got a folder"):
        read_mapping(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="expected UTF-8 text, got other bytes at offset 3"):
        read_mapping(tmp_path / "bytes.yaml")


def test_deep_nesting_is_a_sentence() -> None:
    """libyaml's own composer overflows the stack."""
    with pytest.raises(ConfigError, match="text, line 1: nested too deeply"):
        parse_yaml("[" * 200_000, "text")


def bomb(levels: int, width: int) -> str:
    """The issue's file: lists of aliases of lists of aliases, width^levels values when they are written out."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", [bomb(9, 9), bomb(40, 2), bomb(9, 9) + "? *a9\n: 1\n"])
def test_aliases_that_grow_are_refused_before_they_do(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"text, line \d+: expected at most 1,000,000 values with what alias"
    ):
        parse_yaml(text, "text")


def test_a_long_document_is_refused_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_files, "MAX_VALUES", 100)
    assert len(parse_yaml("[" + "0, " * 99 + "]", "text")) == 99
    with pytest.raises(ConfigError, match="text, line 1: expected at most 100 values"):
        parse_yaml("[" + "0, " * 101 + "\n}", "text")  # the bracket, which is wrong, is not reached


@pytest.mark.parametrize(
    "text",
    [
        "fields: [1e-3, .5, -1]\ncouplings:\n  - [0, 1, 2.5]  # a comment\n  - [1, 2, +.inf]\n",
        "a: &x {k: null, no: yes}\nb: [*x, '1', \"2\\n\"]\nc: |\n  d\n  e\n",
        "a: b?\n",
        "a:\tb\n",
        "a: [1, b: c, ?d]\n",
        "a: [1\n",
        "a: {b:, c: 1}\n",
        "a: 1\n\na: 2\n",
        "a: *b\n",
        "a: 1\n--- b\n",
        "a: \x00\n",
        "\n\n- &a [*a]\n",
        "a: !!int 1_0\n",
        "",
    ],
)
def test_libyaml_changes_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and refusals are those of PyYAML alone, with their lines."""
    found = []
    for fast in (True, False):
        monkeypatch.setattr(yaml, "__with_libyaml__", fast and yaml.__with_libyaml__)
        try:
            found.append(repr(parse_yaml(text, "text")))
        except ConfigError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_aliases_are_read() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\n", "text") == {"a": [1, 2], "b": [1, 2]}
    assert parse_yaml("a: &x {k: 1}\nb: [*x, *x]\n", "text")["b"] == [{"k": 1}, {"k": 1}]


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}", "a: &a [1, [*a]]"])
def test_a_document_that_contains_itself_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="text, line 1: the document contains itself"):
        parse_yaml(text, "text")


@pytest.mark.parametrize("text", ["!!int 1_0", "!!int 0x10", "!!float 1_0.5", "!!float 1:30.5", "!!float x"])
def test_a_tag_makes_no_number(text: str) -> None:
    with pytest.raises(ConfigError, match="text, line 1: expected a number, got '"):
        parse_yaml(text, "text")


def test_numbers_may_have_tags() -> None:
    assert parse_yaml("[!!float 1, !!float -.inf, !!int '010', !!str 1]", "x") == [1.0, -math.inf, 10, "1"]


def test_large_files_are_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=rf"large.yaml': cannot be read .more than {MAX_BYTES} bytes"):
        read_mapping(tmp_path / "large.yaml")
    with pytest.raises(ConfigError, match="text: expected at most 16777216 bytes of YAML, got more"):
        parse_yaml("x" * (MAX_BYTES + 1), "text")
