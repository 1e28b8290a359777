"""Names of other sources: each leads to a key that exists."""

import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.explain import config_fields, explain
from pld_ray.config.file import load_config
from pld_ray.config.keys import field_names
from pld_ray.config.seed_names import SOURCES, called_elsewhere, our_key

NAMES = [(source, name, key) for source, table in SOURCES.items() for name, key in table.items()]


@pytest.mark.parametrize(("source", "name", "key"), NAMES)
def test_every_name_leads_to_the_key_that_it_means(source, name, key):
    assert key in config_fields()
    assert our_key(name, config_fields()) == key
    assert "." in name or our_key(f"algorithm.{name}", config_fields()) == key
    text = explain(name)
    if name == key:
        assert text.startswith(key)
        return
    assert text.startswith(f"{name} is {key} here.")
    assert name in called_elsewhere(key)[source] or name == key.rpartition(".")[2]
    with pytest.raises(ConfigError) as error:
        load_config(TrainConfig, [f"--{name}=1"])
    assert f"did you mean {key}?" in str(error.value)


def test_no_name_means_two_things():
    meanings = {}
    for _, name, key in NAMES:
        assert meanings.setdefault(name, key) == key


def test_a_name_of_ours_is_never_another_source_s():
    assert not {name for _, name, key in NAMES if name != key} & set(field_names(TrainConfig))
