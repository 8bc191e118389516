import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from diabat.documents import yaml_files
from diabat.documents.errors import ConfigError
from diabat.documents.yaml_files import MAX_BYTES, dump_yaml, parse_yaml, read_mapping

REFUSALS = (Path(__file__).parent / "yaml_refusals.txt").read_text().splitlines()[1:]
REFUSALS.append(f'"a: {"9" * 5000}" | expected an integer of 64 bits, got 5000 digits')
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)  # larger ones are refused
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aZ01eé:#-~'\" \n[{,.&*!|>%@`")
    | st.sampled_from(
        ["1e3", "yes", "no", "null", "~", "", "0x10", "1_000", "2026-01-01", "1:30", "true", "=", "<<"]
    )
)


@pytest.mark.parametrize(("text", "value"), [
    ("1e-3", 1e-3), ("3.0e-05", 3e-5), ("5.", 5.0), ("-.5", -0.5), ("010", 10), ("+7", 7), ("no", "no"),
    ("on", "on"), ("true", True), ("2026-01-01", "2026-01-01"), ("1:30", "1:30"), ("h+J", "h+J"), ("~", None),
    ("null", None), ("[1, 0.5, a]", [1, 0.5, "a"]), ("'1e3'", "1e3"),
])  # fmt: skip
def test_scalars_have_the_types_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "text")
    assert parsed == value
    assert type(parsed) is type(value)


@settings(derandomize=True, database=None)
@given(st.dictionaries(st.text("abc_", min_size=1), SCALARS | st.lists(SCALARS)))
def test_what_is_dumped_is_read_back(value: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(value), "text") == value


@pytest.mark.parametrize("line", REFUSALS)
def test_a_bad_file_is_one_sentence(tmp_path: Path, line: str) -> None:
    content, message = line.split(" | ")
    path = tmp_path / "bad.yaml"
    path.write_text(json.loads(content))
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


@pytest.mark.parametrize("deep", ["[" * 200_000, "[" * 101 + "]" * 101])
def test_deep_nesting_is_a_sentence(deep: str) -> None:
    """libyaml's own composer overflows the stack."""
    with pytest.raises(ConfigError, match="text, line 1: nested too deeply"):
        parse_yaml(deep, "text")
    assert parse_yaml("[" * 100 + "]" * 100, "text")


def test_a_long_document_is_refused_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_files, "MAX_VALUES", 100)
    assert len(parse_yaml("[" + "0, " * 90 + "]", "text")) == 90
    with pytest.raises(ConfigError, match="text, line 1: expected at most 100 values"):
        parse_yaml("[" + "0, " * 101 + "\n}", "text")  # the bracket, which is wrong, is not reached


def test_without_libyaml_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: [1e-3, .5, -1, 010, no, ~]\nb:\n  - {k: null, 'x': \"2\\n\"}  # a comment\nc: |\n  d\n  e\n"
    wanted = parse_yaml(text, "text")
    assert wanted["a"] == [1e-3, 0.5, -1, 10, "no", None]
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    try:
        slow = importlib.reload(yaml_files)
        assert not any("CSafe" in base.__name__ for base in slow._Loader.__mro__)
        assert slow.parse_yaml(text, "text") == wanted
        for wrong, sentence in (
            ("a: 1\na: 2", "given twice"),
            ("a: *b", "aliases"),
            ("[" * 200_000, "deeply"),
        ):
            with pytest.raises(ConfigError, match=sentence):
                slow.parse_yaml(wrong, "text")
    finally:
        monkeypatch.undo()
        importlib.reload(yaml_files)


def test_large_files_are_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=rf"large.yaml': cannot be read .more than {MAX_BYTES} bytes"):
        read_mapping(tmp_path / "large.yaml")
    with pytest.raises(ConfigError, match="text: expected at most 16777216 bytes of YAML, got more"):
        parse_yaml("x" * (MAX_BYTES + 1), "text")
