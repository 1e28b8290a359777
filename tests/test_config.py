import pytest

from pld_ray.algorithm.config import PARAMETER_NAMES
from pld_ray.algorithm.params import ResidualSACParams
from pld_ray.build import algorithm_config
from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig, dump_config, field_names, load_config


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
        (["--algorithm.utd=fast"], "algorithm.utd.*Couldn't parse 'fast'"),
        (["--algorithm.tau=3"], r"algorithm\.tau=3\.0: must be in \(0, 1\]"),
        (["--algorithm.num_subsample_critics=5"], "between 1 and num_critics=2"),
        (["--policy.placement=gpu"], "policy.placement='gpu': must be inline or pool"),
        (["--runners.num_learners=4"], "runners.num_learners=4: must be 0 or 1"),
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


@pytest.mark.parametrize("preset", ["tabletop", "pld", "spec"])
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
