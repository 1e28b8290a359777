"""`pld-ray eval`: a checkpoint on held init states, base (if any) and base + residual."""

from __future__ import annotations

import contextlib
import pathlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.bootstrap import RenderingUnavailableError, enable_rendering
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.errors import UserError
from pld_ray.evaluation.eval_info import in_task, of_checkpoint, success_length, write_eval_info
from pld_ray.evaluation.play import EpisodeResult, success_rate
from pld_ray.files.atomic import write_atomically
from pld_ray.files.manifest import CheckpointError
from pld_ray.jobs.build import check_environment, open_environment, running_algorithm
from pld_ray.jobs.elsewhere import joined_now, other_cluster
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rollout.entry_point import can_be_filmed
from pld_ray.rollout.factory import steps_per_second
from pld_ray.runs.layout import CONFIG_FILE, EVAL_INFO_FILE
from pld_ray.runs.run_dir import older_checkpoint, run_of_checkpoint
from pld_ray.runs.trust import check_trusted


def evaluate_checkpoint(
    checkpoint: str,
    n_episodes: int | None = None,
    output_dir: str | None = None,
    videos: Sequence[int] = (),
    parity: bool = False,
    trust: bool = False,
    ray_address: str | None = None,
) -> dict[str, Any]:
    """Evaluate on the first `n_episodes` of the run's held init states; write `eval_info.json`.

    Args:
        checkpoint: a folder below a run's `checkpoints/`.
        n_episodes: episodes, one per init state; None is all that the run held back.
        output_dir: where to write; None is `eval/<checkpoint name>` in the run's folder.
        videos: init states to film, base beside base + residual, as `videos/init_state_<id>.mp4`,
            once `eval_info.json` is written.
        parity: also play base + residual at beta 0, which must repeat the base policy's episodes.
        trust: run the code that the run names, see `pld_ray.runs.trust`.
        ray_address: of the cluster to join; None is RAY_ADDRESS, or where the run was.

    Returns:
        Rates (the base policy's is None where there is none), mean lengths of the successes and the
        environment's rate (None where it tells none),
        whether parity holds (None if it was not asked for), what was written, and which films are
        missing for what reason (`video_failure`; None if all are there).

    Raises:
        ConfigError: the folder is no checkpoint, the run held fewer init states back, or `videos`
            cannot be filmed.
    """
    run = run_of_checkpoint(checkpoint)
    config = run.load_config()
    check_trusted(config, run.path / CONFIG_FILE, trust)
    config = joined_now(config, ray_address)
    held = config.evaluation.held_states
    n_episodes = held if n_episodes is None else n_episodes
    if n_episodes > held:
        raise ConfigError(
            f"--n_episodes={n_episodes}: this run held {held} init states back, and the next "
            f"{config.evaluation.validation_states} chose its checkpoint: give {held} at most "
            "(evaluation.held_states of a run says how many are held)"
        )
    check_environment(config, learns=False)
    if videos:
        check_videos(config, videos)
    folder = pathlib.Path(output_dir or run.path / "eval" / pathlib.Path(checkpoint).name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / EVAL_INFO_FILE
    with running_algorithm(config, learns=False) as algorithm:
        load_whole(algorithm, pathlib.Path(checkpoint).resolve())
        played = play(algorithm, n_episodes, parity)
        write_figures(path, played, config, checkpoint, {})  # before the films: they may fail
        filmed, failure = write_films(algorithm, list(dict.fromkeys(videos)), folder / "videos")
    if filmed:
        write_figures(path, played, config, checkpoint, filmed)
    base, residual = played.base, played.residual
    return {
        "n_episodes": n_episodes,
        "parity": played.repeats_base,
        "videos": list(filmed.values()),
        "video_failure": failure,
        "path": str(path),
        "base_success": None if base is None else success_rate(base),
        "residual_success": success_rate(residual),
        "success_steps": {
            **({} if base is None else {"base": success_length(base)}),
            ("learnt policy" if base is None else "base + residual"): success_length(residual),
        },
        "steps_per_second": steps_per_second(config.env.settings()),
    }


@dataclass(frozen=True)
class Played:
    """Episodes from the same init states.

    Attributes:
        residual: of base + residual.
        base: of the base policy alone; None where nobody asked for it.
        repeats_base: whether base + residual at beta 0 does; None if it was not played.
        eval_s, base_eval_s: wall seconds of each; None for what was not played.
    """

    residual: Sequence[EpisodeResult]
    base: Sequence[EpisodeResult] | None
    repeats_base: bool | None
    eval_s: float
    base_eval_s: float | None


def play(algorithm: OffPolicy, n_episodes: int, parity: bool) -> Played:
    """Play the first `n_episodes` init states."""
    states = list(range(n_episodes))
    base = base_eval_s = None
    clock = time.monotonic()
    residual = algorithm.evaluate_residual(states)
    eval_s = time.monotonic() - clock
    if algorithm.compares or parity:
        clock = time.monotonic()
        base = algorithm.evaluate_base(states)
        base_eval_s = time.monotonic() - clock
    equal = algorithm.evaluate_residual(states, 0.0) == base if parity else None
    return Played(residual, base, equal, eval_s, base_eval_s)


def write_figures(
    path: pathlib.Path,
    played: Played,
    config: TrainConfig,
    checkpoint: str,
    filmed: Mapping[int, str],
) -> None:
    """Write `eval_info.json`.

    Args:
        path: the file.
        played: what it tells.
        config, checkpoint: whose it is.
        filmed: init state -> film.
    """
    extra: dict[str, Any] = {
        "task": config.env.task,
        **of_checkpoint(pathlib.Path(checkpoint).resolve()),
    }
    if played.repeats_base is not None:
        extra["beta_zero_equals_base"] = played.repeats_base
    write_eval_info(
        path,
        in_task(played.residual, config.env, filmed),
        base=None if played.base is None else in_task(played.base, config.env, filmed),
        eval_s=played.eval_s,
        base_eval_s=played.base_eval_s,
        extra=extra,
    )


def load_whole(algorithm: OffPolicy, checkpoint: pathlib.Path) -> None:
    """Load a checkpoint.

    Raises:
        CheckpointError: it is damaged; the message names the next older one.
    """
    try:
        algorithm.load_checkpoint(str(checkpoint))
    except CheckpointError as error:
        older = older_checkpoint(checkpoint)
        advice = f"; the next older one is --checkpoint={shlex.quote(str(older))}" if older else ""
        raise CheckpointError(f"{error}{advice}") from error


def check_videos(config: TrainConfig, videos: Sequence[int]) -> None:
    """Refuse what cannot be filmed, as far as it can be known here, before anything is played.

    Raises:
        ConfigError: an init state that is not stored, an environment without pictures, or no OpenGL
            library on the only machine.
    """
    if config.env.entry_point is not None and not can_be_filmed(config.env.entry_point):
        raise ConfigError(
            f"--videos: {config.env.entry_point} draws no pictures: it needs a render(), and an "
            "__init__ that takes render_mode='rgb_array'"
        )
    with contextlib.closing(open_environment(config)) as env:
        stored = env.num_init_states
    for state in videos:
        if not 0 <= state < stored:
            raise ConfigError(
                f"--videos: {config.env.task} has {stored} stored init states, and {state} is none "
                f"of them: give numbers from 0 to {stored - 1}"
            )
    if config.env.environment_class is None and not other_cluster(config):
        try:
            enable_rendering()
        except RenderingUnavailableError as error:
            raise ConfigError(f"--videos: {error}") from error


def write_films(
    algorithm: OffPolicy, states: Sequence[int], folder: pathlib.Path
) -> tuple[dict[int, str], str | None]:
    """Film each init state, up to the first that fails.

    Returns:
        Init state -> file, and which films are missing for what reason; None if all are there.
    """
    paths: dict[int, str] = {}
    for state in states:
        path = folder / f"init_state_{state:03d}.mp4"
        try:
            write_atomically(path, algorithm.film([state])[state].mp4)
        except (UserError, OSError) as error:
            missing = ", ".join(str(s) for s in states if s not in paths)
            return paths, f"no film of init state {missing}: {error}"
        paths[state] = str(path)
    return paths, None
