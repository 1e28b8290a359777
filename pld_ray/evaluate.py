"""`pld-ray eval`: a checkpoint on held init states, base and base + residual side by side."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import ray

from pld_ray.build import build_algorithm, check_environment, start_ray
from pld_ray.evaluation_rows import episode_results
from pld_ray.run_dir import run_of_checkpoint
from pld_ray.tracking.eval_info import write_eval_info
from pld_ray.train import success_rate


def evaluate_checkpoint(
    checkpoint: str, n_episodes: int, output_dir: str | None = None
) -> dict[str, Any]:
    """Evaluate on the first `n_episodes` held init states and write `eval_info.json`.

    Args:
        checkpoint: a folder below a run's `checkpoints/`.
        n_episodes: episodes, one per init state.
        output_dir: where to write; None is `eval/<checkpoint name>` in the run's folder.

    Raises:
        ConfigError: the folder is no checkpoint, or there are fewer stored init states.
    """
    run = run_of_checkpoint(checkpoint)
    config = run.load_config()
    config.evaluation.held_states = n_episodes
    config.evaluation.validation_states = 0
    check_environment(config)
    own_ray = start_ray(config)
    algorithm = None
    try:
        algorithm = build_algorithm(config)
        algorithm.load_checkpoint(str(pathlib.Path(checkpoint).resolve()))
        states = list(range(n_episodes))
        clock = time.monotonic()
        residual = algorithm.evaluate_residual(states)
        eval_s = time.monotonic() - clock
        base = algorithm.evaluate_base(states)
    finally:
        if algorithm is not None:
            algorithm.stop()
        if own_ray:
            ray.shutdown()
    folder = pathlib.Path(output_dir or run.path / "eval" / pathlib.Path(checkpoint).name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "eval_info.json"
    write_eval_info(
        path,
        episode_results(residual, config.env),
        base=episode_results(base, config.env),
        eval_s=eval_s,
        extra={"task": config.env.task, "checkpoint": str(pathlib.Path(checkpoint).resolve())},
    )
    return {
        "path": str(path),
        "base_success": success_rate(base),
        "residual_success": success_rate(residual),
    }
