"""Whether the values of a sweep's space fit the options that they set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import decode
from pld_ray.config.keys import set_key
from pld_ray.sweep.space import split_keys, values_drawn

MAX_TRIALS = 10_000


def check_draws(axes: Mapping[str, Any], where: str, of: type = TrainConfig) -> None:
    """Check that what a domain lists, or the bounds it draws between, fit what they set.

    Args:
        axes: key or keys -> domain.
        where: what an error begins with.
        of: the class of the trials' configurations.

    Raises:
        ConfigError: naming the key and the value.
    """
    for axis, domain in axes.items():
        keys = split_keys(axis)
        ((kind, values),) = domain.items()
        for value in values_drawn(kind, values):
            parts = value if len(keys) > 1 else [value]
            check_changes(dict(zip(keys, parts, strict=True)), f"{where}{kind}: ", of)


def check_changes(changes: Mapping[str, Any], where: str, of: type = TrainConfig) -> None:
    """Check that each value fits the option that it sets, by itself; arguments as above.

    Raises:
        ConfigError: naming the key and the value.
    """
    for key, value in changes.items():
        mapping: dict[str, Any] = {}
        set_key(of, mapping, key, value)
        decode(of, mapping, where)


def check_set_once(
    variants: Mapping[str, Any], axes: Mapping[str, Any], place: str, where: str
) -> None:
    """Refuse a key to which a trial would be given two values: the later one would win.

    Args:
        variants: name -> changes; a trial takes them first.
        axes: with their domains.
        place: what these are called.
        where: what an error begins with.

    Raises:
        ConfigError: naming the key and both places.
    """
    taken = [
        (str(key), f"variants.{name}")
        for name, changes in variants.items()
        for key in changes or {}
    ]
    for axis in axes:
        for key in split_keys(axis):
            here = place if axis == key else f"{place} ({axis})"
            for earlier, before in taken:
                if f"{earlier}.".startswith(f"{key}."):  # a whole option replaces its keys
                    raise ConfigError(
                        f"{where}: {earlier} is set in {before} and again in {here}, and one "
                        "of the values would be lost: keep it in one place"
                    )
            taken.append((key, here))


def check_size(space: Mapping[str, Any], repeats: int) -> None:
    """Refuse a sweep of more trials than anyone wants, before they are made.

    Args:
        repeats: trials of each point of the grid.

    Raises:
        ConfigError: there are more than `MAX_TRIALS`.
    """
    count = repeats
    for domain in space.values():
        count *= len(domain["grid"]) if "grid" in domain else 1
    if count > MAX_TRIALS:
        raise ConfigError(
            f"the sweep has {count:,} trials, and {MAX_TRIALS:,} are the limit: list fewer values, "
            "or draw some of them (num_samples)"
        )


def check_in_one_process(config: TrainConfig) -> None:
    """Refuse a trial whose offline updates several learners should make.

    Raises:
        ConfigError: naming the setting.
    """
    if isinstance(config, ACRLPDTrainConfig) and config.learners.num_learners:
        raise ConfigError(
            f"learners.num_learners={config.learners.num_learners}: a trial makes its offline "
            "updates in one process; set it to 0, or train with pld-ray acrlpd"
        )
