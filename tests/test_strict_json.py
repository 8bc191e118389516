"""JSON is read as the YAML loader reads: nothing twice, nothing that is no number."""

from __future__ import annotations

import pytest

from diabat.files import parse_json


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, -2.5e3, null, true], "b": {"a": "x"}}') == {
        "a": [1, -2500.0, None, True],
        "b": {"a": "x"},
    }
    assert parse_json(b'{"a": "\xc3\xa9"}') == {"a": "é"}


@pytest.mark.parametrize(("text", "message"), [
    ('{"a": 1, "b": 2, "a": 1}', "the key 'a' is given twice"),
    ('[{"x": {"y": 1, "y": 2}}]', "the key 'y' is given twice"),
    ("[NaN]", "expected finite numbers, got NaN"),
    ("[-Infinity]", "expected finite numbers, got -Infinity"),
    ("[" * 100_000, "nested too deeply"),
    ("[1_0]", "Expecting"),
    ("[01]", "Expecting"),
    ("[" + "1" * 5000 + "]", "Exceeds the limit"),
])  # fmt: skip
def test_input_that_is_not_strict_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
