"""What a declared option accepts, and that every option of ours says enough."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from dataclasses import dataclass
from typing import Literal

import pytest

from pld_ray.config import TrainConfig
from pld_ray.config.file import encode
from pld_ray.config.policy import EMBEDDED_POLICIES
from pld_ray.options import (
    as_type,
    check_options,
    check_paths,
    fields_of,
    fits,
    from_text,
    option,
    unfit,
    without_none,
)
from pld_ray.options.declare import interval
from pld_ray.sweep.config import SweepConfig

FIELDS = [f for c in (TrainConfig, SweepConfig) for f in fields_of(c) if not f.is_group]


@dataclass
class Inner:
    """An inner group."""

    rate: float = option(0.5, "A rate.", within="(0, 1]")
    count: int | None = option(None, "A count.", within="[0, 10]", unit="steps")


@dataclass
class Outer:
    """Of every kind."""

    inner: Inner = dataclasses.field(default=None)
    mode: Literal["fast", "slow"] = option("fast", "A mode.")
    dims: list[int] = option([1], "Dimensions.", within="[0, 3]", items=(1, 2), distinct=True)
    shares: dict[str, float] = option({}, "Shares.", within="[0, 1]")
    name: str = option("a", "A name.", name=True)
    folder: str | None = option(None, "A folder.", path="folder")
    flag: bool = option(False, "A flag.")


KINDS = {field.key: field for field in fields_of(Outer)}


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("inner.rate", [1, 1.0, 1e-9], [0, 0.0, 1.0001, math.nan, math.inf, True, "1", None]),
        ("inner.count", [0, 10, None], [-1, 11, 1.0, True, 10**400, math.nan, "1"]),
        ("mode", ["fast"], ["Fast", "", None, 1, True]),
        ("dims", [[0], [3, 1], (2,)], [[], [1, 1], [0, 1, 2], [4], [1.0], [None], "1", 1, None]),
        ("shares", [{}, {"a": 1}], [{"a": -1}, {"a": None}, {1: 1.0}, {"": 1.0}, [1], None]),
        ("name", ["a", "a-b_c.1"], ["", "..", ".a", "a/b", "a b", "x" * 201, "a\n", "é", None]),
        ("folder", [None, "a/b", "x" * 255], ["", "x" * 256, "x/" * 3000, "a\0b", 1]),
        ("flag", [True, False], [0, 1, "true", None]),
    ],
)
def test_a_value_fits_its_type_and_its_range(key, good, bad):
    field = KINDS[key]
    for value in good:
        assert fits(value, field.hint, field.option), value
    for value in bad:
        assert not fits(value, field.hint, field.option), value


def test_a_refusal_says_what_is_accepted():
    def words(key, value):
        return unfit(key, value, KINDS[key])

    assert words("inner.rate", 2) == "inner.rate=2: must be a number in (0, 1]"
    assert words("inner.count", -1).endswith("a whole number in [0, 10] steps, or null")
    assert words("mode", 1) == "mode=1: must be fast or slow"
    assert words("dims", 1).endswith("a list of 1 to 2 different whole numbers in [0, 3]")
    assert words("shares", 1).endswith("a mapping of names to numbers in [0, 1]")
    assert "more than 30 digits" in words("inner.count", 10**400)
    assert len(words("name", "x" * 10_000)) < 250


def test_nested_options_are_checked_by_their_full_name():
    with pytest.raises(ValueError, match=r"^x\.inner\.rate=nan: must be"):
        check_options(Outer(inner=Inner(rate=math.nan)), "x.")
    with pytest.raises(ValueError, match=r"^inner=None: must be a mapping of its keys"):
        check_options(Outer())


def test_paths_must_be_there_when_a_run_starts(tmp_path):
    check_paths(Outer(inner=Inner(), folder=str(tmp_path)))
    with pytest.raises(ValueError, match=r"folder=.*nowhere: no such folder"):
        check_paths(Outer(inner=Inner(), folder=str(tmp_path / "nowhere")))
    (tmp_path / "file").write_text("")
    config = TrainConfig(output_dir=str(tmp_path / "file" / "run"))
    with pytest.raises(ValueError, match=r"output_dir=.*file is a file, not a folder"):
        check_paths(config)
    check_paths(TrainConfig(output_dir=f"{tmp_path}/{300 * 'x'}/run"))  # cannot be looked at here


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e-4", float, 1e-4),
        ("7", int, 7),
        (2.0, int, 2),
        (3, float, 3.0),
        (5, str, "5"),
        ("\u00b2", int, "\u00b2"),
        ("1_000", int, "1_000"),
        (True, int, True),
        (2.5, int, 2.5),
        ([1, "2"], list[float], [1.0, 2.0]),
        ({1: "2"}, dict[str, float], {"1": 2.0}),
    ],
)
def test_yaml_is_read_as_the_declared_type_where_nothing_is_lost(value, hint, expected):
    read = as_type(value, hint)
    assert read == expected
    assert type(read) is type(expected)


def test_a_flag_is_a_text_where_a_text_is_due():
    assert from_text("null", str | None) is None
    assert from_text("null", str) == "null"
    assert from_text("1e3", str) == "1e3"


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.key)
def test_every_option_says_its_meaning_and_its_range(field):
    assert field.meaning.endswith(".")
    assert fits(field.default, field.hint, field.option)
    inner, _ = without_none(field.hint)
    numbers = {int, float} & {inner, *typing.get_args(inner)}
    if numbers:
        _, low, high, _ = interval(field.option.within)
        assert -math.inf < low < high < math.inf
    for value in (math.nan, math.inf, -math.inf, object()):
        assert not fits(value, field.hint, field.option)
    if field.default is None:
        assert fits(None, field.hint, field.option)


NOT_KEYS = {
    *("pld_tabletop", "q_out_of_bound", "log_prob", "mc_return", "alpha_c", "tau_c"),
    *("torch.compile", "spatial_embeddings", "in_process", "aot_eager"),
    *("keyboard_ee", "no_progress", "hg_dagger", *EMBEDDED_POLICIES),
}
"""Names in the texts that are no keys: suites, figures, choices, symbols."""


def test_texts_name_only_keys_that_exist():
    """An identifier with an underscore or a dot is a key, a value of a choice, or listed above."""
    for config_class in (TrainConfig, SweepConfig):
        fields = {f.key: f for c in (TrainConfig, config_class) for f in fields_of(c)}
        names = {part for key in fields for part in (key, key.rsplit(".", 1)[-1])}
        for field in fields.values():
            for word in re.findall(r"\b[a-z]+(?:[_.][a-z]+)+\b", field.meaning):
                assert word in names | NOT_KEYS, (field.key, word)


def test_lists_and_mappings_are_nobody_elses():
    one, other = TrainConfig(), TrainConfig()
    one.algorithm.hidden_dims.append(1)
    one.placement.env_runner["a"] = 1.0
    assert encode(other) == encode(TrainConfig())
