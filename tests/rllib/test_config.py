"""RLlib's own way to configure: attributes, `training`, search spaces, copies, `validate`."""

from __future__ import annotations

import pytest
from ray import tune

from pld_ray.config import TrainConfig
from pld_ray.config.keys import field_names
from pld_ray.policies.checkpoint import EMBEDDED_WEIGHTS
from pld_ray.rllib import ResidualSACConfig


def test_every_parameter_has_one_name_in_yaml_rllib_and_python():
    config = TrainConfig()
    config.algorithm.utd = 4
    config.algorithm.gamma = 0.9
    config.algorithm.batch_size = 64
    rllib = ResidualSACConfig.of_run(config)
    assert rllib.learner_params() == config.algorithm
    assert rllib.train_batch_size_per_learner == 64
    for name in vars(config.algorithm):
        assert f"algorithm.{name}" in field_names(TrainConfig)
        assert ResidualSACConfig.options()[name].key == f"algorithm.{name}"


def test_an_option_that_is_minus_one_reaches_the_algorithm():
    """RLlib's mark of a deprecated setting is -1; the config is handed on as its state."""
    config = ResidualSACConfig().training(
        target_entropy=-1, log_std_max=-1.0, reward_bias=-1.0, value_range=[-101.0, 0.0]
    )
    arrived = ResidualSACConfig.from_state(config.get_state()).learner_params()
    assert (arrived.target_entropy, arrived.log_std_max, arrived.reward_bias) == (-1, -1, -1)
    assert arrived == config.learner_params()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.training(utd=float("inf")), "algorithm.utd=inf: must be a number"),
        (lambda c: c.training(hidden_dims=None), "algorithm.hidden_dims=None: must be a list"),
        (lambda c: c.training(sampling="foo"), "training.sampling='foo': must be synchronous"),
        (lambda c: c.training(publish_interval=0), "training.publish_interval=0: must"),
        (lambda c: c.training(stall_timeout_s=float("nan")), "training.stall_timeout_s=nan"),
        (lambda c: c.training(collection_seed=-1), "training.collection_seed=-1: must"),
        (lambda c: c.training(max_staleness=1), "max_staleness=1: must be null or at least"),
        (lambda c: c.base_policy(type="foo"), "base_policy.type='foo': must be lerobot or none"),
        (lambda c: c.base_policy(max_batch_size=0), "base_policy.max_batch_size=0"),
    ],
)
def test_rllibs_own_configuration_is_checked_alike(change, message):
    with pytest.raises(ValueError, match=message):
        change(ResidualSACConfig()).validate()


def test_a_search_space_of_one_parameter_reaches_tune_and_comes_back():
    space = tune.uniform(1, 4)
    plain = ResidualSACConfig().training(utd=space, n_step=5).to_dict()
    assert plain["utd"].lower == 1
    assert ResidualSACConfig.options().keys() <= plain.keys()
    drawn = ResidualSACConfig().update_from_dict({**plain, "utd": 2.0})
    assert (drawn.utd, drawn.n_step) == (2.0, 5)
    assert drawn.learner_params().utd == 2.0


def test_copies_share_nothing_and_frozen_ones_stay():
    one = ResidualSACConfig().training(hidden_dims=[8]).base_policy(rename_map={"a": "b"})
    other = one.copy(copy_frozen=False)
    other.hidden_dims.append(9)
    other.base_policy_options.rename_map["a"] = "c"
    assert one.hidden_dims == [8]
    assert one.base_policy_options.rename_map == {"a": "b"}
    assert ResidualSACConfig().hidden_dims == [256, 256]
    one.freeze()
    with pytest.raises(AttributeError, match="frozen"):
        one.training(utd=3)


def test_an_unknown_name_is_a_type_error():
    with pytest.raises(TypeError, match=r"training\(utdd\) does not exist; did you mean utd\?"):
        ResidualSACConfig().training(utdd=2)
    with pytest.raises(TypeError, match=r"base_policy\(pth\) .* did you mean path\?"):
        ResidualSACConfig().base_policy(pth="x")
    with pytest.raises(TypeError, match=r"human\(devise\) .* did you mean device\?"):
        ResidualSACConfig().human(devise="none")


def test_a_run_s_pool_has_the_values_of_its_policy():
    run = TrainConfig()
    run.policy.max_batch_size, run.policy.dtype = 8, "bfloat16"
    run.placement.base_policy = {"gpu_node": 1.0}
    spec = ResidualSACConfig.of_run(run).pool_spec()
    assert (spec.max_batch_size, spec.resources) == (8, {"gpu_node": 1.0})
    assert spec.arguments == {"path": None, "dtype": "bfloat16"}


def test_the_base_policy_s_own_encoder_is_found_in_its_folder():
    config = ResidualSACConfig().base_policy(path="pld_tabletop_act")
    config.training(vision_encoder_name="policy")
    assert config.learner_params().vision_encoder_weights == str(
        EMBEDDED_WEIGHTS / "pld_tabletop_act"
    )
    config.training(vision_encoder_weights="elsewhere")
    assert config.learner_params().vision_encoder_weights == "elsewhere"
    config.training(vision_encoder_weights=None).base_policy(type="none")
    with pytest.raises(ValueError, match="vision_encoder_name='policy': there is no base policy"):
        config.learner_params()
