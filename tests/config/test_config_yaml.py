import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diabat.config import ConfigError
from diabat.config.yaml_files import dump_yaml, parse_yaml, read_mapping

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
        ("a: \tb\n\tc: 1\n", r"line \d+: "),
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
    with pytest.raises(ConfigError, match="text: nested too deeply"):
        parse_yaml("[" * 5000 + "]" * 5000, "text")
