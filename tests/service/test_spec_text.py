import time

import pytest

from service.errors import BadRequest
from service.spec import load_spec_text


def refusal(text: str, media: str) -> str:
    with pytest.raises(BadRequest) as caught:
        load_spec_text(text, media)  # type: ignore[arg-type]
    return caught.value.detail


class TestYaml:
    def test_reads_numbers_text_and_booleans_as_json_would_have_them(self) -> None:
        text = "a: 1\nb: 1.5\nc: 1e-4\nd: true\ne: null\nf: [x, '2']\ng: {h: -3}\n"
        assert load_spec_text(text, "yaml") == {
            "a": 1,
            "b": 1.5,
            "c": 1e-4,
            "d": True,
            "e": None,
            "f": ["x", "2"],
            "g": {"h": -3},
        }

    @pytest.mark.parametrize("word", ["no", "yes", "on", "off", "NO", "y", "1:30", "1_000", "2024-01-01"])
    def test_what_only_yaml_1_1_takes_for_something_else_stays_text(self, word: str) -> None:
        assert load_spec_text(f"a: {word}", "yaml") == {"a": word}

    def test_a_leading_zero_does_not_make_a_number_octal(self) -> None:
        assert load_spec_text("[010, 0o10, 0x10]", "yaml") == [10, 8, 16]

    def test_quoted_text_is_text(self) -> None:
        assert load_spec_text("a: \"true\"\nb: '1'\nc: ! 12\nd: |\n  x\n", "yaml") == {
            "a": "true",
            "b": "1",
            "c": "12",
            "d": "x\n",
        }

    def test_an_alias_stands_for_its_anchor(self) -> None:
        assert load_spec_text("a: &x {b: 1}\nc: *x", "yaml") == {"a": {"b": 1}, "c": {"b": 1}}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a: 1\nb:\n  c: 1\n  c: 2", "The key 'c' is given twice in one mapping (line 4, column 3)"),
            ("a: .nan", ".nan is not a finite number (line 1, column 4)"),
            ("a: -.inf", "-.inf is not a finite number (line 1, column 4)"),
            ("a: 1e999", "1e999 is too large for a number (line 1, column 4)"),
            ("1: a", 'The key 1 is not text: write it in quotes ("1") (line 1, column 1)'),
            ("? [a]\n: b", "A key must be plain text (line 1, column 3)"),
            ("<<: {a: 1}", "The merge key << is not supported: write the keys out (line 1, column 1)"),
            ("a: *b", "The alias *b names no anchor that is complete before it (line 1, column 4)"),
            ("x: &a [*a]", "The alias *a names no anchor that is complete before it (line 1, column 8)"),
            ("a: 1\n---\nb: 2", "The YAML holds more than one document: give one study (line 2, column 1)"),
            ("a: " + "9" * 65, "A number must not be longer than 64 characters (line 1, column 4)"),
            ('a: "\\0"', "Text must not hold the NUL character (line 1, column 4)"),
            ("a: \ud800", "The YAML holds a character that is not valid Unicode text (line 1, column 4)"),
        ],
    )
    def test_refuses_what_is_ambiguous_and_says_where(self, text: str, expected: str) -> None:
        assert refusal(text, "yaml") == expected

    @pytest.mark.parametrize(
        "text", ["a: !!python/object/apply:os.system [ls]", "a: !!str 12", "a: !mine 1", "!!omap [a: 1]"]
    )
    def test_refuses_every_tag(self, text: str) -> None:
        assert "is not allowed: write plain values (line 1" in refusal(text, "yaml")

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("a: [1, 2", "(line 2, column 1)"),
            ("a: 1\n b: 2", "(line 2, column 3)"),
            ("a: 'x\n", "(line 2, column 1)"),
            ("a:\n\t- b", "(line 2, column 1)"),
        ],
    )
    def test_malformed_yaml_is_refused_with_line_and_column(self, text: str, where: str) -> None:
        detail = refusal(text, "yaml")
        assert detail.startswith("The YAML is malformed: ")
        assert detail.endswith(where)

    def test_empty_yaml_is_refused(self) -> None:
        assert refusal("# nothing\n", "yaml").startswith("The YAML is empty")

    def test_aliases_that_multiply_are_refused_before_they_grow(self) -> None:
        lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
        start = time.perf_counter()
        assert "more than 100000 values (aliases expanded)" in refusal("\n".join(lines), "yaml")
        assert time.perf_counter() - start < 1

    def test_depth_is_bounded_through_aliases_too(self) -> None:
        lines = ["a0: &a0 [1]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 40))]
        assert "nested more than 32 levels deep" in refusal("\n".join(lines), "yaml")
        assert "nested more than 32 levels deep" in refusal("[" * 40 + "]" * 40, "yaml")
        assert "nest" in refusal("[" * 500_000, "yaml")


class TestJson:
    def test_reads_json(self) -> None:
        assert load_spec_text('{"a": [1, 2.5, true, null, "x"]}', "json") == {"a": [1, 2.5, True, None, "x"]}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('{"a": }', "The JSON is malformed: Expecting value (line 1, column 7)"),
            ("", "The JSON is malformed: Expecting value (line 1, column 1)"),
            ('{"a": 1,\n "a": 2}', "The key 'a' is given twice in one object (line 2, column 2)"),
            (
                '{"x": [{"k": 1}, {"k": 2, "\\u006b": "k"}], "x ": 1}',
                "The key 'k' is given twice in one object (line 1, column 27)",
            ),
            ('{"a":\n NaN}', "NaN is not a finite number, and JSON does not know it (line 2, column 2)"),
            ("[-Infinity]", "-Infinity is not a finite number, and JSON does not know it (line 1, column 2)"),
            ("[1, 1e999]", "1e999 is too large for a number (line 1, column 5)"),
            (f"[{'9' * 5000}]", "A number must not be longer than 64 characters (line 1, column 2)"),
            ("[" * 33 + "]" * 33, "The JSON is nested more than 32 levels deep"),
            ("[" * 200_000, "The JSON is nested more than 32 levels deep"),
            ('{"a\\ud800": 1}', "Text must not hold the character \\ud800 alone: 'a\\ud800'"),
        ],
    )
    def test_refuses_what_is_malformed_or_ambiguous(self, text: str, expected: str) -> None:
        assert refusal(text, "json") == expected

    def test_32_levels_are_allowed(self) -> None:
        assert load_spec_text("[" * 32 + "]" * 32, "json") is not None
