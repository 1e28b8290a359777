import pathlib
import re

import pytest

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import dump_config, load_config, read_config, read_stored
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.config.residual_sac_checks import check_grippers
from pld_ray.jobs.build import offline_cache_folder


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


DOTTED = """
algorithm.utd: 3
algorithm: {n_step: 1}
env: {task: lift_the_can, entry_point: "envs.point:PointEnv", kwargs.side: 0.3}
env.kwargs.a.b: 1
policy.rename_map: {observation.images.image: observation.images.front}
"""


def test_keys_in_a_file_may_be_dotted(tmp_path):
    path = tmp_path / "preset.yaml"
    path.write_text(DOTTED)
    config = load_config(TrainConfig, [f"--config_path={path}"])
    assert (config.algorithm.utd, config.algorithm.n_step) == (3, 1)
    assert (config.env.task, config.env.kwargs) == ("lift_the_can", {"side": 0.3, "a.b": 1})
    assert config.policy.rename_map == {"observation.images.image": "observation.images.front"}
    path.write_text("algorithm.name: acrlpd\nalgorithm: {horizon: 4}\n")
    assert load_config(ACRLPDTrainConfig, [f"--config_path={path}"]).algorithm.horizon == 4
    with pytest.raises(ConfigError, match="is a configuration of pld-ray acrlpd"):
        load_config(TrainConfig, [f"--config_path={path}"])
    path.write_text("algorithm.learning_rate: 5\n")
    with pytest.raises(ConfigError, match=r"preset.yaml: algorithm.learning_rate=5.0: must be"):
        load_config(FinetuneConfig, [f"--config_path={path}"])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("algorithm: {utd: 1}\nalgorithm.utd: 1", "algorithm.utd"),
        ("algorithm.utd: 1\nalgorithm: 3", "algorithm.utd"),
        ("env: {kwargs: {a: 1}, kwargs.a: 2}", "env.kwargs.a"),
        ("env.kwargs.a: 1\nenv: {kwargs: {a: 2}}", "env.kwargs.a"),
    ],
)
def test_a_key_in_a_file_has_one_form(text, key, tmp_path):
    path = tmp_path / "preset.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"preset.yaml: key {key} is given twice, with a dot"):
        load_config(TrainConfig, [f"--config_path={path}"])
    path.write_text("algorithm.udt: 2")
    with pytest.raises(ConfigError, match=r"algorithm.udt does not exist; did you mean algorithm"):
        load_config(TrainConfig, [f"--config_path={path}"])


def test_an_option_that_is_gone_is_read_where_it_did_nothing_and_refused_elsewhere(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(TrainConfig()) + "\n")
    stored = path.read_text().replace("evaluation:\n", "evaluation:\n  at_final_scale: false\n")
    stored = stored.replace("algorithm:\n", "algorithm:\n  success_share: 0.0\n")
    path.write_text(stored)
    assert load_config(TrainConfig, [f"--config_path={path}"]) == TrainConfig()
    path.write_text(stored.replace("at_final_scale: false", "at_final_scale: true"))
    with pytest.raises(ConfigError, match=r"config\.yaml: key evaluation\.at_final_scale does not"):
        load_config(TrainConfig, [f"--config_path={path}"])
    with pytest.raises(ConfigError, match=r"evaluation\.at_final_scale does not exist"):
        load_config(TrainConfig, ["--evaluation.at_final_scale=false"])
    path.write_text(stored.replace("success_share: 0.0", "success_share: 0.25"))
    with pytest.raises(ConfigError, match=r"algorithm\.success_share does not exist any more: use"):
        read_stored(path)


def test_a_stored_run_is_as_it_was_when_it_lacks_options_that_came_later(tmp_path):
    path = tmp_path / "config.yaml"
    stored = dump_config(TrainConfig())
    later = ("actor_delay_n_step", "actor_lr_warmup_updates")
    for name in ("ema_decay", "success_imitation", "collection_steps", *later):
        stored = re.sub(rf"\n  {name}: .*", "", stored)
    path.write_text(stored)
    then = read_stored(path).algorithm
    assert (then.ema_decay, then.success_imitation, then.collection_steps) == (0, 0, 0)
    assert (then.actor_delay_n_step, then.actor_lr_warmup_updates) == (0, 0)
    assert read_config(TrainConfig, path) == TrainConfig()  # a user's file has today's defaults
    path.write_text(dump_config(TrainConfig()))
    assert read_stored(path) == TrainConfig()


def test_a_stored_run_may_have_an_end_that_no_validation_came_for(tmp_path):
    path = tmp_path / "config.yaml"
    run = TrainConfig()
    run.evaluation.interval_steps, run.evaluation.stop_success = 0, 0.9
    path.write_text(dump_config(run))
    assert read_stored(path).evaluation.stop_success is None
    with pytest.raises(ConfigError, match="makes none before the end"):
        read_config(TrainConfig, path)  # a user's file
    other = FinetuneConfig(dataset=["data"])  # has no such end
    other.evaluation.interval_steps = 0
    path.write_text(dump_config(other))
    assert read_stored(path) == other


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--algorithm.udt=2"], "algorithm.udt does not exist; did you mean algorithm.utd"),
        (["--tau=0.1"], "tau does not exist; did you mean algorithm.tau"),
        (["--algorithm.utd=fast"], r"algorithm.utd='fast': must be a number in \[0, 1000\]"),
        (["--algorithm.tau=3"], r"algorithm\.tau=3\.0: must be a number in \(0, 1\]"),
        (
            ["--algorithm.proximal_penalty=0.1", "--algorithm.ema_decay=0"],
            "proximal_penalty=0.1: must be 0 with ema_decay=0",
        ),
        (["--algorithm.num_subsample_critics=6"], "between 1 and num_critics=5"),
        (["--algorithm.critic_smoothing=0.3"], "must be 0, or at least 0.5"),
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
        (
            {"scale_entropy_target": True, "residual_scale": 0.25},
            r"scale_entropy_target=True.*beta=0.25 delta is asked for 2.66 nats, "
            r"of which it has 2.08",
        ),
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
        (["eval"], "--checkpoint is missing; usage: pld-ray eval --checkpoint=DIR"),
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
        name: load_config(TrainConfig, ablation.flags(overrides))
        for name, overrides in cells.items()
    }
    assert configs["full"].algorithm.calql_steps > 0
    assert configs["no_calql"].algorithm.calql_steps == 0
    assert configs["no_calql"].algorithm.otf_candidates == configs["full"].algorithm.otf_candidates
    assert configs["sac_scratch"].policy.type == "none"
    assert not configs["rlpd"].algorithm.compose_base
    assert configs["shipped"].algorithm == load_config(TrainConfig, []).algorithm


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

    def learner(*flags):
        return load_config(TrainConfig, [f"--config_path={path}", *flags]).placement.learner

    assert learner("--placement.learner={}") == {}  # replaced, as any option
    assert learner("--placement.learner={other: 2}") == {"other": 2}
    assert learner("--placement.learner.other=2") == {"learning": 1, "other": 2}
    assert learner("--placement={env_runner: {simulation: 1}}") == {"learning": 1}


def test_collected_data_has_a_folder_of_its_own_for_each_way_of_playing_chunks():
    def folder(*args):
        return offline_cache_folder(load_config(TrainConfig, list(args)))

    assert folder() == folder()
    ways = [[], ["--policy.prefetch=true"], ["--policy.prefetch=true", "--policy.rtc=true"]]
    assert len({folder(*way) for way in ways}) == 3
