"""Two processes against one: the same updates, a part of the parameters each, the same files."""

import dataclasses
import json

import pytest
import torch
from blind_ranks import begin
from safetensors.torch import load_file
from several_ranks import (
    FAILURE,
    FIGURES,
    FILES,
    PARAMS,
    difference,
    on_ranks,
    train_in_all_ways,
)

from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig, FinetunedPolicyConfig, LearnersConfig
from pld_ray.files.manifest import sha256
from pld_ray.sharded.ranks import Ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train_in_all_ways(tmp_path_factory.mktemp("ranks"))


def test_two_ranks_are_one_process_with_twice_the_micro_batches(folder):
    assert difference(folder / "one", folder / "two") <= 1e-6
    assert difference(folder / "two-first", folder / "two") > 1e-5  # something was learnt
    one, two = (json.loads((folder / name / FIGURES).read_text()) for name in ("one", "two"))
    assert two.pop("share") <= 0.6
    assert one.pop("share") == 1.0
    assert one.pop("memory/balance") == 1.0
    assert 0.5 < two.pop("memory/balance") <= 1.0
    assert min(run.pop("memory/most_gb") for run in (one, two)) > 0.1
    assert two == pytest.approx(one, rel=1e-5)


def test_any_number_of_ranks_goes_on_from_the_components_of_another(folder):
    assert difference(folder / "two", folder / "two-last") <= 1e-6


def test_activations_computed_again_are_the_same_on_two_ranks(folder):
    assert difference(folder / "two", folder / "two-again") <= 1e-6


def test_bfloat16_on_two_ranks_is_that_on_one_but_for_rounding(folder):
    one, two, exact = (folder / name for name in ("one-bfloat16", "two-bfloat16", "one"))
    assert 0 < difference(one, two) < difference(one, exact)
    for file in FILES:
        assert {tensor.dtype for tensor in load_file(two / file).values()} == {torch.float32}
    figures = [json.loads((run / FIGURES).read_text()) for run in (one, two, exact)]
    losses = [found["validation"] for found in figures]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] == pytest.approx(losses[2], rel=1e-2)


def test_what_the_first_rank_cannot_write_stops_all_of_them(folder):
    told = {(folder / f"{FAILURE}{rank}").read_text() for rank in (0, 1)}
    assert len(told) == 1
    assert "a checkpoint cannot be written: FileNotFoundError" in told.pop()


def test_every_rank_is_told_that_one_of_them_does_not_see_the_folder(tmp_path):
    folder, own = tmp_path / "shared", tmp_path / "own"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 1")
    given = {"written": sha256(folder / "config.yaml"), "resumes": False}
    on_ranks(2, begin, [folder, own], given, tmp_path)
    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(2)]
    assert told[0].replace(str(folder), str(own)) == told[1]
    assert "output_dir must lie on storage that all nodes share" in told[0]
    assert not own.exists()


def test_micro_batches_are_dealt_and_all_ranks_do_as_many():
    assert [Ranks(r, 2).turns(4) for r in (0, 1)] == [[0, 2], [1, 3]]
    dealt = [Ranks(r, 3).turns(4) for r in range(3)]
    assert dealt == [[0, 3], [1, 4], [2, 5]]  # 4 and 5 count for nothing
    assert Ranks().turns(3) == [0, 1, 2]


def test_what_does_not_fit_the_learners_is_refused_in_a_sentence():
    def refused(message, params=PARAMS, **settings):
        config = FinetuneConfig(algorithm=params, learners=LearnersConfig(**settings))
        with pytest.raises(ConfigError, match=message):
            config.validate()

    refused(r"multiple of algorithm.accumulation=2 times .*=5, such as 30", num_learners=5)
    refused("must divide learners.num_learners=4", num_learners=4, replicas=3)
    with pytest.raises(ConfigError, match="give one of the two"):
        FinetuneConfig(
            algorithm=dataclasses.replace(PARAMS, precision="bfloat16"),
            policy=FinetunedPolicyConfig(dtype="bfloat16"),
        ).validate()
    refused("must be at most learners.num_learners=2", num_learners=2, min_learners=3)
