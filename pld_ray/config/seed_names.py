"""What other sources call our settings: for "did you mean" and `--explain`."""

from __future__ import annotations

from collections.abc import Collection

PLD = {
    "xi_init": "algorithm.residual_scale_init",
    "xi_final": "algorithm.residual_scale",
    "xi_warmup_episodes": "algorithm.residual_scale_steps",
    "warmup_episodes": "algorithm.warmup_steps",
    "eval_freq": "evaluation.interval_steps",
}
Q_CHUNKING = {
    "discount": "algorithm.gamma",
    "q_aggregation": "algorithm.target_reduction",
    "target_update_tau": "algorithm.tau",
    "initial_temperature": "algorithm.temperature_init",
}
SPECIFICATION = {
    "otf_K": "algorithm.otf_candidates",
    "H_probe": "algorithm.probe_steps",
    "grad_steps_per_env_step": "algorithm.utd",
    "beta.mode": "algorithm.residual_scale_schedule",
    "beta.value": "algorithm.residual_scale",
    "alpha.init": "algorithm.temperature_init",
    "alpha.target_entropy": "algorithm.target_entropy",
    "optim.q_lr": "algorithm.critic_lr",
    "optim.pi_lr": "algorithm.actor_lr",
    "optim.alpha_lr": "algorithm.temperature_lr",
    "buffers.offline_success_path": "demo_path",
    "buffers.online_capacity": "algorithm.online_capacity",
}
HIL_SERL = {
    "cta_ratio": "algorithm.critic_actor_update_ratio",
    "random_steps": "algorithm.warmup_steps",
    "training_starts": "algorithm.warmup_steps",
    "steps_per_update": "runners.publish_interval",
    "checkpoint_period": "checkpoint.interval_steps",
    "checkpoint_path": "output_dir",
    "buffer_period": "dump_interval",
    "replay_buffer_capacity": "algorithm.online_capacity",
    "max_steps": "total_steps",
    "exp_name": "env.task",
    "ip": "ray_address",
    "demo_path": "demo_path",
    "setup_mode": "algorithm.gripper",
    "eval_n_trajs": "evaluation.held_states",
}
LEROBOT_SAC = {
    "discount": "algorithm.gamma",
    "critic_target_update_weight": "algorithm.tau",
    "utd_ratio": "algorithm.utd",
    "use_backup_entropy": "algorithm.backup_entropy",
    "policy_update_freq": "algorithm.critic_actor_update_ratio",
    "online_step_before_learning": "algorithm.warmup_steps",
    "online_buffer_capacity": "algorithm.online_capacity",
    "offline_buffer_capacity": "algorithm.offline_capacity",
    "std_min": "algorithm.log_std_min",
    "std_max": "algorithm.log_std_max",
}
SOURCES = {
    "PLD's code": PLD,
    "Q-chunking": Q_CHUNKING,
    "the specification": SPECIFICATION,
    "HIL-SERL": HIL_SERL,
    "LeRobot's SAC": LEROBOT_SAC,
}
"""Source (seeds 000 to 004) -> its name -> our key."""


def our_key(name: str, known: Collection[str]) -> str | None:
    """The key that a source calls so, alone or in one of our groups; None if no source does.

    Args:
        name: dotted, as it was given.
        known: keys that exist; a command that lacks the key does not name it.
    """
    for given in (name, name.rpartition(".")[2]):
        for table in SOURCES.values():
            if table.get(given) in known:
                return table[given]
    return None


def called_elsewhere(key: str) -> dict[str, list[str]]:
    """Source -> what it calls one of our keys, where the name differs."""
    own = key.rpartition(".")[2]
    names = {
        source: [name for name, ours in table.items() if ours == key and name != own]
        for source, table in SOURCES.items()
    }
    return {source: found for source, found in names.items() if found}
