"""Every value of a preset against a table of its source, in the source's own numbers."""

import dataclasses
import math
import pathlib

import pytest
import yaml
from update_fixtures import make_update

from pld_ray.algorithm.residual.calql import CalQLInitialization
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.presets import PRESETS, preset_names

ACTION_DIM = 7
FIRST_DEFAULTS = {"log_std_init": -1.0, "offline_episodes": 20}
WITHOUT_OURS = {
    "success_imitation": 0.0,
    "ema_decay": 0.0,
    "actor_lr_warmup_updates": 0,
    "conservative_weight": 0.0,
}

PLD = {
    "the paper, Table 5": {
        "batch_size": 256,
        "gamma": 0.99,
        "tau": 0.005,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "temperature_lr": 3e-4,
        "weight_decay": 0.01,  # AdamW's
        "grad_clip_norm": 1.0,
        "residual_scale": 0.5,
        "use_probing": True,
        "otf_candidates": 1,
        "num_critics": 2,
        "critic_actor_update_ratio": 2,
        "warmup_steps": 100 * 120,  # episodes, of so many steps
        "temperature_init": 1.0,
        "target_entropy": -ACTION_DIM,
        "online_capacity": 250_000,
    },
    "the paper's equations": {
        "residual_dims": [],
        "num_subsample_critics": 2,
        "actor_delay_updates": 0,
        "backup_entropy": True,
        "n_step": 1,
        "exploration_noise": "white",
        "actor_reduction": "min",
        "critic_atoms": 1,
    },
    "seed 002, 12.3": {"residual_scale_schedule": "linear", "residual_scale_init": 0.0},
    "ours": {"residual_scale_steps": 10_000, "calql_steps": 5_000, "calql_alpha": 1.0}
    | FIRST_DEFAULTS,
    "what it has not": WITHOUT_OURS,
}
SPEC = {
    "seed 002, 13": {
        "gamma": 0.99,
        "tau": 0.005,
        "batch_size": 256,
        "otf_candidates": 8,
        "utd": 1,
        "warmup_steps": 1000,
        "use_probing": True,
        "probe_steps": 50,
        "residual_scale_schedule": "constant",
        "residual_scale": 0.5,
        "temperature_init": 0.1,
        "target_entropy": -ACTION_DIM,
        "critic_lr": 3e-4,
        "actor_lr": 3e-4,
        "temperature_lr": 3e-4,
        "online_capacity": 1_000_000,
    },
    "seed 002, 14: its equations": {
        "residual_dims": [],
        "num_critics": 2,
        "num_subsample_critics": 2,
        "backup_entropy": True,
        "n_step": 1,
        "exploration_noise": "white",
        "actor_reduction": "min",
        "critic_atoms": 1,
    },
    "seed 002, 10.2: its loop": {"critic_actor_update_ratio": 1, "actor_delay_updates": 0},
    "ours": {"calql_steps": 5_000, "calql_alpha": 1.0} | FIRST_DEFAULTS,
    "what it has not": WITHOUT_OURS,
}
CQL_MIN_Q_WEIGHT, REWARD_SCALE, REWARD_BIAS, DISCOUNT = 5.0, 10.0, -5.0, 0.99
CALQL = {
    "the authors' run_antmaze.sh": {
        "calql_alpha": CQL_MIN_Q_WEIGHT * math.exp(1.0),  # log_alpha_prime starts at 1
        "calql_target_gap": 0.8,
        "calql_lagrange": True,
        "calql_calibrate": True,
        "hidden_dims": [256, 256],
        "critic_hidden_dims": [256, 256, 256, 256],
        "reward_scale": REWARD_SCALE,
        "reward_bias": REWARD_BIAS,
        "value_range": [REWARD_BIAS / (1 - DISCOUNT), REWARD_SCALE + REWARD_BIAS],
    },
    "the authors' defaults": {
        "gamma": DISCOUNT,
        "backup_entropy": False,
        "calql_td_xi": 0.0,
        "target_entropy": -ACTION_DIM,
        "actor_lr": 1e-4,
        "temperature_lr": 1e-4,
        "critic_lr": 3e-4,
        "calql_lagrange_lr": 3e-4,
        "tau": 5e-3,
        "calql_num_actions": 10,
        "calql_lse_beta": 1.0,
        "otf_candidates": 10,
        "temperature_init": 1.0,
        "batch_size": 256,
        "utd": 1,
        "log_std_init": -1.0,
        "log_std_min": -20.0,
        "log_std_max": 2.0,
    },
    "the authors' code": {
        "residual_dims": [],
        "critic_atoms": 1,
        "n_step": 1,
        "critic_actor_update_ratio": 1,
        "actor_delay_updates": 0,
        "num_critics": 2,
        "num_subsample_critics": 2,
        "target_reduction": "min",
        "actor_reduction": "min",
        "critic_layer_norm": False,
        "exploration_noise": "white",
    },
    "ours": {"offline_episodes": 20, "calql_steps": 5_000},
    "what it has not": WITHOUT_OURS,
}
HILSERL = {
    "seed 003, 3.2, and HIL-SERL's configuration of its tasks": {
        "policy.type": "none",
        "runners.publish_interval": 50,  # steps_per_update
        "offline_episodes": 0,  # --demo_path alone
        "batch_size": 256,
        "gamma": 0.97,  # discount
        "critic_actor_update_ratio": 2,  # cta_ratio
        "utd": 2,
        "warmup_steps": 100,  # training_starts
        "warmup_actions": "random",  # random_steps
        "online_capacity": 200_000,
        "offline_capacity": 200_000,
    },
    "seed 004, 6.1": {
        "temperature_init": 1.0,
        "num_critics": 2,
        "num_subsample_critics": 2,
        "tau": 0.005,
        "target_entropy": None,
        "backup_entropy": True,
    },
    "seed 004, 6.2": {
        "latent_dim": 256,
        "state_encoder_hidden_dim": 256,
        "image_encoder_hidden_dim": 32,
        "shared_encoder": True,
        "freeze_vision_encoder": True,
        "vision_encoder_name": "none",
    },
    "seed 004, 6.3": {
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "temperature_lr": 3e-4,
        "grad_clip_norm": 40.0,
    },
    "seed 004, 6.4": {
        "use_tanh_squash": True,
        "init_final": 0.05,
        "log_std_min": math.log(math.sqrt(1e-5)),  # the bounds serve as variances
        "log_std_max": math.log(math.sqrt(10.0)),
    },
    "seed 004, 2 to 4": {
        "compose_base": False,
        "residual_scale": 1.0,
        "target_reduction": "min",
        "actor_reduction": "min",
        "log_std_init": 0.0,
        "actor_delay_updates": 0,
        "n_step": 1,
        "use_probing": False,
        "exploration_noise": "white",
        "critic_atoms": 1,
    },
    "what it has not": WITHOUT_OURS,
}
LEARNT_GRIPPERS = {"residual_dims": [], "gripper": "discrete", "grasp_penalty": 0.02}
HILSERL_SINGLE = HILSERL | {"003, 1.3": LEARNT_GRIPPERS | {"gripper_dims": [6]}}
HILSERL_DUAL = HILSERL | {"003, 1.3": LEARNT_GRIPPERS | {"gripper_dims": [6, 13]}}
HILSERL_FIXED = HILSERL | {
    "003, 1.3": {"residual_dims": [1, 1, 1, 1, 1, 1, 0], "gripper": "continuous"}
}
RLPD = {
    "the paper's appendix and the authors' README, Adroit": {
        "batch_size": 256,
        "gamma": 0.99,
        "tau": 0.005,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "temperature_lr": 3e-4,
        "num_critics": 10,
        "num_subsample_critics": 2,
        "target_reduction": "min",
        "actor_reduction": "mean",
        "critic_layer_norm": True,
        "utd": 20,
        "critic_actor_update_ratio": 20,
        "temperature_init": 1.0,
        "target_entropy": None,
        "backup_entropy": False,
        "hidden_dims": [256, 256, 256],
        "warmup_steps": 5000,
    },
    "the authors' code": {
        "compose_base": False,
        "residual_scale": 1.0,
        "residual_dims": [],
        "actor_delay_updates": 0,
        "warmup_actions": "random",
        "use_probing": False,
        "otf_candidates": 1,
        "n_step": 1,
        "exploration_noise": "white",
        "critic_atoms": 1,
    },
    "ours": FIRST_DEFAULTS,
    "what it has not": WITHOUT_OURS,
}
HG_DAGGER = {
    "Kelly et al. (2019), algorithm 1": {
        "actor_loss": "hg_dagger",  # of the expert's actions alone
        "offline_episodes": 0,  # D_BC: demonstrations
        "log_std_init": -5.0,  # the novice acts without noise
    },
    "ours": {
        "residual_dims": [],
        "residual_scale": 2.0,
        "warmup_steps": 500,
        "use_probing": False,
    },
    "what it has not": WITHOUT_OURS,
}
QC = {
    "the authors' acfql.py, actor_type best-of-n": {
        "horizon": 5,
        "improvement": "best_of_n",
        "num_candidates": 32,
        "target_candidates": 32,
        "flow_steps": 10,
        "gamma": 0.99,
        "tau": 0.005,
        "batch_size": 256,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "num_critics": 2,
        "target_reduction": "mean",
        "actor_reduction": "mean",
        "critic_layer_norm": True,
        "utd": 1,
    },
    "their code": {
        "num_subsample_critics": 2,
        "critic_atoms": 1,
        "tail": "drop",
        "bc_episodes": "all",
        "positive_share": 0.0,
        "ema_decay": 0.0,
    },
}
FQL = {
    "the authors' fql.py": {
        "distill_alpha": 10.0,
        "flow_steps": 10,
        "gamma": 0.99,
        "tau": 0.005,
        "batch_size": 256,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "num_critics": 2,
        "target_reduction": "mean",
        "critic_layer_norm": True,
    },
    "their code": {
        "horizon": 1,
        "improvement": "distill",
        "num_subsample_critics": 2,
        "actor_reduction": "mean",
        "critic_atoms": 1,
        "bc_episodes": "all",
        "positive_share": 0.0,
        "ema_decay": 0.0,
    },
}
ACRLPD = {
    "seed 001, 5.3.1": {
        "horizon": 10,
        "gamma": 0.99,
        "improvement": "best_of_n",
        "num_candidates": 32,
        "flow_steps": 10,
        "ema_decay": 0.999,
    },
    "seed 001, 5.2.2, 5.2.4 and 5.2.5": {
        "target_candidates": 4,
        "bc_episodes": "positive",
        "critic_weight": 1.0,
        "actor_weight": 1.0,
        "bc_weight": 0.01,
        "weight_decay": 0.0,
    },
    "seed 001, 2.6.2 and 4.3.1": {"positive_share": 0.1, "batch_size": 128},
    "seed 001, 6.2": {
        "num_critics": 10,
        "num_subsample_critics": 10,
        "critic_hidden_dims": [256, 256, 256],
        "critic_dropout": 0.1,
        "critic_layer_norm": True,
        "critic_atoms": 1,
        "tau": 0.005,
        "target_reduction": "min",
        "actor_reduction": "min",
        "grad_clip_norm": 1.0,
    },
}
CHUNKED_TABLES = {"acrlpd": ACRLPD, "qc": QC, "fql": FQL}
CHUNKED = {*CHUNKED_TABLES, "tabletop_chunked"}
TABLES = {
    "pld": PLD,
    "spec": SPEC,
    "calql": CALQL,
    "rlpd": RLPD,
    "hg_dagger": HG_DAGGER,
    "hilserl_single": HILSERL_SINGLE,
    "hilserl_dual": HILSERL_DUAL,
    "hilserl_fixed_gripper": HILSERL_FIXED,
}
TABLES |= CHUNKED_TABLES


def class_of(name):
    return ACRLPDTrainConfig if name in CHUNKED else TrainConfig


def preset(name):
    return load_config(class_of(name), [f"--config_path={name}"]).algorithm


@pytest.mark.parametrize("name", TABLES)
def test_a_preset_has_its_source_s_values_and_no_other(name):
    """What a preset leaves out is inherited: every value that matters is in the table."""
    groups = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    stated = groups.pop("algorithm")
    stated |= {f"{group}.{key}": v for group, keys in groups.items() for key, v in keys.items()}
    assert (stated.pop("name", None) == "acrlpd") == (name in CHUNKED)
    table = {}
    for source, values in TABLES[name].items():
        assert not set(values) & set(table), source
        table |= values
    assert set(stated) == set(table)
    config = load_config(class_of(name), [f"--config_path={name}"])
    for key, value in table.items():
        group, _, field = key.rpartition(".")
        ours = getattr(getattr(config, group or "algorithm"), field)
        exact = value is None or isinstance(value, bool | str)
        assert ours == (value if exact else pytest.approx(value, rel=1e-6)), key


def test_the_preset_of_the_embedded_task_is_of_chunks():
    config = load_config(ACRLPDTrainConfig, ["--config_path=tabletop_chunked"])
    config.validate()
    assert config.algorithm.bc_episodes == "all"


def test_a_preset_of_another_command_is_refused():
    with pytest.raises(ConfigError, match="qc is a configuration of pld-ray acrlpd"):
        load_config(TrainConfig, ["--config_path=qc"])
    with pytest.raises(ConfigError, match=r"rlpd: key algorithm\.\w+ does not exist"):
        load_config(ACRLPDTrainConfig, ["--config_path=rlpd"])


@pytest.mark.parametrize("name", ["tabletop", "libero_spatial", "libero_object", "libero_goal"])
def test_every_task_is_learnt_with_one_configuration(name):
    """Experiments/results/learning: a preset of a task changes nothing of the algorithm."""
    assert preset(name) == dataclasses.replace(TrainConfig().algorithm, precision="auto")


AS_TRAINED = {
    "n_step": 16,
    "log_std_init": -1.5,
    "ema_decay": 0.998,
    "actor_lr_warmup_updates": 0,
    "conservative_weight": 0.0,
    "gamma": 0.99,
    "num_critics": 5,
    "exploration_rho": 0.97,
    "use_probing": True,
}
PIXELS = {"actor_delay_updates": 3000, "offline_episodes": 20, "success_imitation": 0.05}
SCRATCH = {"actor_delay_updates": 500, "offline_episodes": 0, "success_imitation": 0.2}


@pytest.mark.parametrize(
    ("name", "own"), [("tabletop_pixels", PIXELS), ("tabletop_scratch", SCRATCH)]
)
def test_a_preset_that_was_trained_with_other_defaults_does_not_follow_the_new_ones(name, own):
    """Experiments/results/learning, "From pixels"; experiments/results/human, "From scratch"."""
    params = dataclasses.asdict(preset(name))
    trained = AS_TRAINED | own
    assert {key: params[key] for key in trained} == trained


def test_the_policy_that_sees_pixels_lies_where_the_preset_says():
    config = load_config(TrainConfig, ["--config_path=tabletop_pixels"])
    policy = pathlib.Path(__file__).parents[2] / config.policy.path
    assert (policy / "config.json").is_file()


@pytest.mark.parametrize("name", sorted({*preset_names()} - CHUNKED))
def test_every_shipped_preset_builds_and_takes_a_step(name):
    params = preset(name)
    params.vision_encoder_name = "none"  # images are tested with images
    params.batch_size = 16
    arms = len(params.gripper_dims)
    discrete = params.gripper == "discrete"
    update = make_update(params, discrete=discrete, action_dim=arms * ACTION_DIM)
    if params.calql_steps:
        figures = CalQLInitialization(update, update.replay.offline).run(1)
        assert math.isfinite(figures["calql_loss"])
    update.updates = params.actor_delay_updates + params.critic_actor_update_ratio - 1
    figures = update.run(1)
    assert math.isfinite(figures["actor_loss"])
    assert params.actor_loss == "hg_dagger" or math.isfinite(figures["critic_loss"])


def test_the_gap_of_calql_can_be_met():
    """Least value of the regulariser: the random actions alone, at Q = 0 of data with Q = 1."""
    least = math.log(10 * 2**ACTION_DIM) - 1
    assert least == pytest.approx(6.15, abs=0.01)
    params = preset("calql")
    low, high = params.value_range
    bounded = params.critic_atoms > 1
    assert not bounded
    assert math.log(10 * 2**ACTION_DIM) + low - high < params.calql_target_gap


def test_hil_serl_counts_half_a_nat_a_dimension():
    """Of what its Gaussian actor moves: the learnt gripper is not its."""
    update = make_update(preset("hilserl_single"), discrete=True, action_dim=ACTION_DIM)
    assert update.target_entropy.item() == -(ACTION_DIM - 1) / 2


def test_a_file_wins_over_a_preset_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert preset("rlpd").utd == 20
    (tmp_path / "rlpd").write_text("algorithm: {utd: 3}")
    assert preset("rlpd").utd == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rldp", r"--config_path=rldp: no such file and no preset; did you mean rlpd or acrlpd\?"),
        ("presets/pld.yml", r"did you mean pld\?"),
        ("hilserl", r"did you mean hilserl_dual or hilserl_single\?"),
        ("xyz", "presets are acrlpd, calql, fql, hg_dagger, hilserl_dual, hilserl_fixed"),
        ("", "--config_path=: no such file"),
        ("a\0b", "no such file and no preset"),
    ],
)
def test_a_wrong_name_is_answered_with_close_ones(name, message):
    with pytest.raises(ConfigError, match=message):
        preset(name)
