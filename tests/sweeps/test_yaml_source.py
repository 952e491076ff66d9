import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.mistakes import ConfigError
from sweeps.yaml_source import MAX_BYTES, dump, parse, parse_value, read


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-5", 1e-5),
        ("1E5", 100000.0),
        ("3.0e-4", 3e-4),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("+7", 7),
        ("010", 10),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1e-5'", "1e-5"),
        ('"010"', "010"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("e5", "e5"),
        ("1e", "1e"),
        ("=", "="),
        ("!!str 5", "5"),
    ],
)
def test_scalars_mean_what_the_person_meant(written, meant):
    value = parse(f"key: {written}").data["key"]
    assert value == meant
    assert type(value) is type(meant)


def test_nan_is_a_number():
    assert math.isnan(parse("key: .NaN").data["key"])


def test_every_key_path_has_its_line():
    source = parse("a:\n  b: 1\n\n  c: [x,\n      y]\n'off': {d: 2}\n")
    assert source.data == {"a": {"b": 1, "c": ["x", "y"]}, "off": {"d": 2}}
    assert source.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 4,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("off",): 6,
        ("off", "d"): 6,
    }


def test_duplicate_keys_are_named_with_both_lines():
    source = parse("a: 1\nb: {c: 2, c: 3}\na: 4\n", "f.yaml")
    assert list(map(str, source.problems)) == [
        "f.yaml:2: b.c: duplicate key, already given in line 2; keep one of the two",
        "f.yaml:3: a: duplicate key, already given in line 1; keep one of the two",
    ]


def test_anchors_and_merge_keys_are_expanded_and_explicit_keys_win():
    source = parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nlist: &l [1]\nagain: *l\n")
    assert source.data["use"] == {"x": 1, "y": 3}
    assert source.data["again"] == [1]
    assert source.problems == []
    assert source.lines[("use", "x")] == 1


def test_of_several_merged_mappings_the_first_wins():
    source = parse("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nuse: {<<: [*a, *b]}\n")
    assert source.data["use"] == {"x": 1, "y": 2}


def test_merging_something_else_is_refused():
    problems = parse("a: &a 5\nuse: {<<: *a}\n").problems
    assert [problem.key for problem in problems] == ["use.<<"]


def test_alias_bombs_and_circles_end_quickly():
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert "use fewer aliases" in refusal(bomb)
    assert "nested too deep, or an alias to itself" in refusal("a: &a [*a]\n")
    merges = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
    )
    assert "use fewer" in refusal(merges)
    assert "merge key" in refusal("a: &a {<<: *a}\n")


def test_deep_nesting_is_refused():
    assert "nested too deep" in refusal("a: " + "[" * 60 + "]" * 60)
    assert "nested too deep" in refusal("a: " + "[" * 5000 + "]" * 5000)


def test_tags_are_refused_by_name():
    problems = parse("a: !!python/object/apply:os.system [ls]\nb: !mine 5\nc: !!int x\nd: !!binary aGk=\n").problems
    assert [problem.key for problem in problems] == ["a", "b", "c", "d"]
    assert all(problem.message.endswith("remove the tag") for problem in problems)


def test_a_number_too_long_is_refused_by_name():
    source = parse(f"a: {10**40}\n", "f.yaml")
    assert "a whole number this long fits no setting; use less than 2**63" in str(source.problems[0])


def test_syntax_errors_have_a_line_and_a_fix():
    assert refusal("a: 1\nb: [1, 2\nc: 3\n").startswith("f.yaml:3: not valid YAML (")
    assert "indent with spaces, not tabs" in refusal("a:\n\tb: 1\n")
    assert refusal("a: 1\n--- \nb: 2\n").startswith("f.yaml:2: not valid YAML (")
    assert refusal("a: 1\nb: \x07\n").startswith("f.yaml:2: not valid YAML (")


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "---\n"])
def test_an_empty_file_is_named(text):
    assert refusal(text) == "f.yaml: empty; a sweep file needs study, search_space and train"


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "5\n"])
def test_the_top_level_must_be_a_mapping(text):
    assert refusal(text).startswith("f.yaml:1: the top level is not a mapping; start with")


def test_a_list_as_key_is_refused():
    assert parse("? [a, b]\n: 1\n").problems[0].message == "a key is a list or a mapping; use a plain word as key"


def test_files_that_cannot_be_read_give_one_message(tmp_path: Path):
    def message(path) -> str:
        with pytest.raises(ConfigError) as caught:
            read(path)
        (problem,) = caught.value.problems
        return problem.message

    assert message(tmp_path / "none.yaml") == "no such file; check the path"
    assert message(tmp_path) == "this is a folder; name the YAML file in it"
    assert message("/dev/null") == "not a regular file; name a YAML file"
    assert "cannot be read" in message("a\0b")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: caf\xe9\n")
    assert message(latin) == "not UTF-8 at byte 6; save the file as UTF-8 text"
    large = tmp_path / "large.yaml"
    large.write_text("#" * (MAX_BYTES + 1))
    assert message(large).startswith(f"{MAX_BYTES + 1} bytes are too many")


def test_a_byte_order_mark_and_windows_line_ends_are_no_content(tmp_path: Path):
    path = tmp_path / "windows.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    assert read(path).data == {"a": 1, "b": 2}


def test_the_value_of_an_option_is_yaml():
    assert parse_value("1e-5", "--set") == 1e-5
    assert parse_value("[4, 8]", "--set") == [4, 8]
    assert parse_value("", "--set") is None
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_value("[4, 8", "--set")


scalars = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=12)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8), trees, min_size=1, max_size=4))
def test_what_is_dumped_is_read_back(data):
    assert parse(dump(data)).data == data


@pytest.mark.parametrize("word", ["1e-5", "010", "off", "12:30", "true", "~", "<<", "1_0", "", " x ", "#", "a: b"])
def test_words_that_look_like_something_else_survive_a_dump(word):
    assert parse(dump({"key": word, word or "k": 1})).data == {"key": word, word or "k": 1}
