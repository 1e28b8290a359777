"""`pld-ray eval`: a checkpoint on held init states, base (if any) and base + residual."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Any

from pld_ray.config import ConfigError
from pld_ray.evaluation.eval_info import in_task, success_length, write_eval_info
from pld_ray.evaluation.play import success_rate
from pld_ray.evaluation.video import Film
from pld_ray.files.manifest import CheckpointError
from pld_ray.jobs.build import check_environment, running_algorithm
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rollout.factory import steps_per_second
from pld_ray.runs.run_dir import older_checkpoint, run_of_checkpoint
from pld_ray.runs.trust import check_trusted


def evaluate_checkpoint(
    checkpoint: str,
    n_episodes: int | None = None,
    output_dir: str | None = None,
    videos: Sequence[int] = (),
    parity: bool = False,
    trust: bool = False,
) -> dict[str, Any]:
    """Evaluate on the first `n_episodes` of the run's held init states; write `eval_info.json`.

    Args:
        checkpoint: a folder below a run's `checkpoints/`.
        n_episodes: episodes, one per init state; None is all that the run held back.
        output_dir: where to write; None is `eval/<checkpoint name>` in the run's folder.
        videos: init states to film, base beside base + residual, as `videos/init_state_<id>.mp4`.
        parity: also play base + residual at beta 0, which must repeat the base policy's episodes.
        trust: run the code that the run names, see `pld_ray.runs.trust`.

    Returns:
        Rates (the base policy's is None where there is none), mean lengths of the successes and the
        environment's rate (None where it tells none),
        whether parity holds (None if it was not asked for), and what was written.

    Raises:
        ConfigError: the folder is no checkpoint, or the run held fewer init states back.
    """
    run = run_of_checkpoint(checkpoint)
    config = run.load_config()
    check_trusted(config, run.path / "config.yaml", trust)
    held = config.evaluation.held_states
    n_episodes = held if n_episodes is None else n_episodes
    if n_episodes > held:
        raise ConfigError(
            f"--n_episodes={n_episodes}: this run held {held} init states back, and the next "
            f"{config.evaluation.validation_states} chose its checkpoint: give {held} at most "
            "(evaluation.held_states of a run says how many are held)"
        )
    check_environment(config, learns=False)
    with running_algorithm(config, learns=False) as algorithm:
        load_whole(algorithm, pathlib.Path(checkpoint).resolve())
        states = list(range(n_episodes))
        clock = time.monotonic()
        residual = algorithm.evaluate_residual(states)
        eval_s = time.monotonic() - clock
        base = algorithm.evaluate_base(states) if algorithm.compares or parity else None
        equal = algorithm.evaluate_residual(states, 0.0) == base if parity else None
        films = algorithm.film(list(videos))
    folder = pathlib.Path(output_dir or run.path / "eval" / pathlib.Path(checkpoint).name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "eval_info.json"
    filmed = {state: str(p) for state, p in write_films(folder / "videos", films).items()}
    extra: dict[str, Any] = {
        "task": config.env.task,
        "checkpoint": str(pathlib.Path(checkpoint).resolve()),
    }
    if parity:
        extra["beta_zero_equals_base"] = equal
    write_eval_info(
        path,
        in_task(residual, config.env, filmed),
        base=None if base is None else in_task(base, config.env, filmed),
        eval_s=eval_s,
        extra=extra,
    )
    return {
        "n_episodes": n_episodes,
        "parity": equal,
        "videos": list(filmed.values()),
        "path": str(path),
        "base_success": None if base is None else success_rate(base),
        "residual_success": success_rate(residual),
        "success_steps": {
            **({} if base is None else {"base": success_length(base)}),
            ("learnt policy" if base is None else "base + residual"): success_length(residual),
        },
        "steps_per_second": steps_per_second(config.env.settings()),
    }


def load_whole(algorithm: OffPolicy, checkpoint: pathlib.Path) -> None:
    """Load a checkpoint.

    Raises:
        CheckpointError: it is damaged; the message names the next older one.
    """
    try:
        algorithm.load_checkpoint(str(checkpoint))
    except CheckpointError as error:
        older = older_checkpoint(checkpoint)
        advice = f"; the next older one is --checkpoint={older}" if older else ""
        raise CheckpointError(f"{error}{advice}") from error


def write_films(folder: pathlib.Path, films: dict[int, Film]) -> dict[int, pathlib.Path]:
    """Write each film; init state -> file."""
    paths = {}
    for state, film in films.items():
        folder.mkdir(parents=True, exist_ok=True)
        paths[state] = folder / f"init_state_{state:03d}.mp4"
        paths[state].write_bytes(film.mp4)
    return paths
