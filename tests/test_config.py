import math
import pathlib

import pytest

from pld_ray.algorithm import losses
from pld_ray.algorithm.config import PARAMETER_NAMES
from pld_ray.algorithm.params import ResidualSACParams
from pld_ray.algorithm.validation import check_grippers
from pld_ray.build import algorithm_config, offline_cache_folder
from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config_file import dump_config, field_names, load_config
from pld_ray.networks import ResidualNetworks


def test_the_printed_configuration_reads_back_equal(tmp_path):
    config = load_config(
        TrainConfig, ["--algorithm.utd=2", "--env.task=lift_the_can", "--algorithm.hidden_dims=[8]"]
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    again = load_config(TrainConfig, [f"--config_path={path}"])
    assert again == config
    assert again.algorithm.utd == 2
    assert again.algorithm.hidden_dims == [8]


def test_flags_win_over_the_file(tmp_path):
    path = tmp_path / "preset.yaml"
    path.write_text("algorithm: {utd: 3, n_step: 1}\nseed: 5\n")
    config = load_config(TrainConfig, [f"--config_path={path}", "--seed=7"])
    assert (config.algorithm.utd, config.algorithm.n_step, config.seed) == (3, 1, 7)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--algorithm.udt=2"], "algorithm.udt does not exist; did you mean algorithm.utd"),
        (["--tau=0.1"], "tau does not exist; did you mean algorithm.tau"),
        (["--algorithm.utd=fast"], r"algorithm.utd='fast': must be a number in \[0, 1000\]"),
        (["--algorithm.tau=3"], r"algorithm\.tau=3\.0: must be a number in \(0, 1\]"),
        (["--algorithm.num_subsample_critics=5"], "between 1 and num_critics=2"),
        (["--policy.placement=gpu"], "policy.placement='gpu': must be inline or pool"),
        (["--runners.num_learners=-1"], r"runners.num_learners=-1: must be a whole number"),
        (["--config_path=missing.yaml"], "missing.yaml: no such file"),
    ],
)
def test_a_wrong_key_or_value_is_one_clear_sentence(args, message):
    with pytest.raises(ConfigError, match=message):
        load_config(TrainConfig, args)


def test_a_wrong_key_in_the_file_names_the_file_and_the_key(tmp_path):
    path = tmp_path / "preset.yaml"
    path.write_text("algorithm:\n  otf_candidate: 8\n")
    with pytest.raises(
        ConfigError, match=r"preset.yaml: key algorithm.otf_candidate .*algorithm.otf_candidates"
    ):
        load_config(TrainConfig, [f"--config_path={path}"])
    path.write_text("algorithm: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(TrainConfig, [f"--config_path={path}"])
    path.write_text("- 1")
    with pytest.raises(ConfigError, match="must hold a mapping, not a list"):
        load_config(TrainConfig, [f"--config_path={path}"])


def test_every_parameter_has_one_name_in_yaml_rllib_and_python():
    config = TrainConfig()
    config.algorithm.utd = 4
    config.algorithm.gamma = 0.9
    config.algorithm.batch_size = 64
    rllib = algorithm_config(config)
    assert rllib.residual_sac_params() == config.algorithm
    assert rllib.train_batch_size_per_learner == 64
    for name in PARAMETER_NAMES:
        assert f"algorithm.{name}" in field_names(TrainConfig)


@pytest.mark.parametrize(
    "preset", ["tabletop", "tabletop_images", "pld", "spec", "rlpd", "hilserl", "calql"]
)
def test_shipped_presets_load(preset):
    config = load_config(TrainConfig, [f"--config_path=experiments/presets/{preset}.yaml"])
    config.algorithm.validate()


def test_presets_say_what_their_source_says():
    spec = load_config(TrainConfig, ["--config_path=experiments/presets/spec.yaml"]).algorithm
    assert (spec.otf_candidates, spec.probe_steps, spec.temperature_init) == (8, 50, 0.1)
    assert (spec.target_entropy, spec.gamma, spec.critic_actor_update_ratio) == (-7, 0.99, 1)
    pld = load_config(TrainConfig, ["--config_path=experiments/presets/pld.yaml"]).algorithm
    assert (pld.otf_candidates, pld.grad_clip_norm, pld.temperature_init) == (1, 1.0, 1.0)
    assert (pld.critic_actor_update_ratio, pld.online_capacity) == (2, 250_000)


def test_hilserl_has_the_values_of_the_seeds_four_tables():
    p = load_config(TrainConfig, ["--config_path=experiments/presets/hilserl.yaml"]).algorithm
    # 6.1 core
    assert (p.gamma, p.temperature_init, p.num_critics, p.tau, p.utd) == (0.99, 1.0, 2, 0.005, 1)
    assert (p.target_entropy, p.backup_entropy) == (None, True)
    # 6.2 networks
    assert (p.latent_dim, p.state_encoder_hidden_dim, p.image_encoder_hidden_dim) == (256, 256, 32)
    assert (p.shared_encoder, p.freeze_vision_encoder, p.vision_encoder_name) == (
        True,
        True,
        "none",
    )
    # 6.3 optimisers
    assert (p.actor_lr, p.critic_lr, p.temperature_lr, p.grad_clip_norm) == (3e-4, 3e-4, 3e-4, 40.0)
    # 6.4 policy: the seed gives standard deviations
    assert (p.use_tanh_squash, p.init_final) == (True, 0.05)
    assert math.exp(p.log_std_min) == pytest.approx(1e-5, rel=1e-4)
    assert math.exp(p.log_std_max) == pytest.approx(10.0, rel=1e-4)
    # 6.5 training
    assert (p.critic_actor_update_ratio, p.warmup_steps) == (1, 100)
    assert (p.online_capacity, p.offline_capacity) == (100_000, 100_000)
    # -d / 2 of a seven-dimensional action
    networks = ResidualNetworks(8, 7, p)
    assert losses.entropy_target(networks.residual_dims).item() == -3.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_critics": 2, "num_subsample_critics": 3}, r"num_subsample_critics=3.*between 1 and"),
        ({"calql_lse_beta": 0.0}, r"calql_lse_beta=0.0: must be a number in \(0, 1e6\]"),
        ({"gripper": "discrete", "residual_dims": [1.0] * 7}, r"residual_dims.*discrete gripper"),
        ({"gripper": "none"}, r"gripper='none': must be continuous or discrete"),
        ({"critic_dropout": 1.0}, r"critic_dropout=1.0"),
        ({"value_range": [1.0, 0.0]}, r"value_range"),
        ({"vision_encoder_name": "resnet"}, r"vision_encoder_name='resnet'.*torchvision:NAME"),
        ({"task_embedding": "text"}, r"text_encoder_path=None"),
        ({"warmup_actions": "none"}, r"warmup_actions='none'"),
        ({"target_reduction": "max"}, r"target_reduction='max': must be min, mean or weighted"),
    ],
)
def test_options_that_cannot_work_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        ResidualSACParams(**changes).validate()


def test_a_discrete_gripper_needs_an_environment_with_one():
    params = ResidualSACParams(gripper="discrete", gripper_dims=[3])
    with pytest.raises(ValueError, match=r"gripper_dims=\[3\].*has grippers in dimensions \[6\]"):
        check_grippers(params, (6,))
    with pytest.raises(ValueError, match="has no gripper"):
        check_grippers(params, ())
    check_grippers(ResidualSACParams(gripper="discrete"), (6,))
    check_grippers(ResidualSACParams(), ())


def test_parameters_out_of_range_are_named():
    with pytest.raises(ValueError, match=r"residual_dims=.*at least one dimension"):
        ResidualSACParams(residual_dims=[0.0, 0.0]).validate()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "'trian' is no command"),
        (["train", "--algorithm.udt=1"], "did you mean algorithm.utd"),
        (["train", "--env.task=open_the_door", "--dry_run"], "open_the_door"),
        (["train", "--policy.path=nowhere", "--dry_run"], "nowhere"),
        (["train", "--resume=nowhere"], "holds no run: config.yaml is missing"),
        (["eval", "--checkpoint=nowhere"], "is not a pld-ray checkpoint"),
        (["eval"], "takes --checkpoint"),
        (["train", "--algorithm.residual_dims=[1.0]", "--dry_run"], "residual_dims has 1 factors"),
    ],
)
def test_the_command_line_refuses_without_a_traceback(argv, message, capsys, tmp_path, monkeypatch):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_every_cell_of_the_ablation_is_a_valid_run():
    import importlib.util

    path = pathlib.Path("experiments/benchmarks/ablation.py")
    spec = importlib.util.spec_from_file_location("ablation", path)
    ablation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ablation)
    cells = ablation.load_cells()
    assert {"full", "no_calql", "no_otf", "no_probing", "no_warmup", "rlpd", "sac_scratch"} <= set(
        cells
    )
    configs = {
        name: load_config(
            TrainConfig, [f"--config_path={ablation.TASK_PRESET}", *ablation.flags(overrides)]
        )
        for name, overrides in cells.items()
    }
    assert configs["full"].algorithm.calql_steps > 0
    assert configs["no_calql"].algorithm.calql_steps == 0
    assert configs["no_calql"].algorithm.otf_candidates == configs["full"].algorithm.otf_candidates
    assert configs["sac_scratch"].policy.type == "none"
    assert not configs["rlpd"].algorithm.compose_base
    assert (
        configs["shipped"].algorithm
        == load_config(TrainConfig, [f"--config_path={ablation.TASK_PRESET}"]).algorithm
    )


def test_mappings_with_keys_of_their_own_survive_the_file(tmp_path):
    """`env.kwargs`, `rename_map` and placements hold names that no field has."""
    config = load_config(
        TrainConfig,
        [
            "--env.entry_point=envs.point:PointEnv",
            "--env.kwargs={episode_length: 7}",
            "--policy.rename_map={observation.images.image: observation.images.front}",
            "--placement.learner={learning: 1}",
        ],
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(TrainConfig, [f"--config_path={path}"]) == config
    assert config.env.kwargs == {"episode_length": 7}


def test_collected_data_has_a_folder_of_its_own_for_each_way_of_playing_chunks():
    def folder(*args):
        return offline_cache_folder(load_config(TrainConfig, list(args)))

    assert folder() == folder()
    ways = [[], ["--policy.prefetch=true"], ["--policy.prefetch=true", "--policy.rtc=true"]]
    assert len({folder(*way) for way in ways}) == 3
