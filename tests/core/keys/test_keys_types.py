"""What each type of a key row takes."""

import pytest

from primus.core.keys import NotOfType, parse_type


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("bool", True, True),
        ("bool", "FALSE", False),
        ("int", 8, 8),
        ("int", "8", 8),
        ("int", 1e6, 1000000),
        ("float", 2, 2.0),
        ("float", 1e-3, 1e-3),
        ("float", "1e-3", 1e-3),
        ("float?", None, None),
        ("float?", "None", None),
        ("str?", "null", None),
        ("str", "None", "None"),
        ("str", 12, "12"),
        ("path?", "/tmp", "/tmp"),
        ("list[int]", [1, 2], [1, 2]),
        ("list[int]?", "2 2 12", [2, 2, 12]),
        ("list[int]", "[0]", [0]),
        ("list[int]", "1,2", [1, 2]),
        ("list[int]", 3, [3]),
        ("list[float]", [1, 0.5], [1.0, 0.5]),
        ("list[str]", "0.3 a 0.7 b", ["0.3", "a", "0.7", "b"]),
        ("str|list[str]?", [0.3, "a", 7, "b"], ["0.3", "a", "7", "b"]),
        ("str|list[str]?", "a b", "a b"),
        ("int|str", "1", "1"),
        ("int|str", 1, 1),
        ("float|list[float]", 1, 1.0),
        ("dict", {"a": 1}, {"a": 1}),
        ("dict", "{a: 1}", {"a": 1}),
        ("any", [None, True], [None, True]),
    ],
)
def test_a_value_of_certain_meaning_is_converted(kind, given, value):
    read = parse_type(kind).convert(given)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("bool", 1),
        ("bool", "yes"),
        ("int", True),
        ("int", 1.5),
        ("int", "abc"),
        ("int", float("inf")),
        ("float", True),
        ("float", "fast"),
        ("float", float("nan")),
        ("float", float("inf")),
        ("float", None),
        ("str", 1.10),
        ("str", True),
        ("str", ["a"]),
        ("list[int]", [1, "a"]),
        ("list[int]", [True]),
        ("list[int]", "[1"),
        ("list[str]", [["a"]]),
        ("dict", [1]),
        ("dict", "a"),
        ("path", None),
    ],
)
def test_a_value_of_doubtful_meaning_is_refused(kind, given):
    with pytest.raises(NotOfType):
        parse_type(kind).convert(given)


def test_a_type_is_told_in_words():
    assert str(parse_type("str|list[int]?")) == "text or a list of integers or null"


@pytest.mark.parametrize("text", ["integer", "list[list]", "int,str", ""])
def test_an_unknown_type_is_a_mistake_of_the_row(text):
    with pytest.raises(ValueError, match="not a type of a key row"):
        parse_type(text)
