"""`pld-ray collect`: what a policy does, recorded as one LeRobotDataset."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pld_ray.config import TrainConfig
from pld_ray.data.episode_writer import CHECKSUM, EpisodeWriter, begun_in, check_goes_on
from pld_ray.errors import UserError
from pld_ray.jobs.build import check_environment, running_algorithm
from pld_ray.jobs.evaluate import load_whole
from pld_ray.jobs.recording import recording_of
from pld_ray.rllib.of_run import algorithm_config
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rllib.stream_seed import RECORDED, stream_seed
from pld_ray.rollout.start_order import StartOrder, ended_episodes
from pld_ray.runs.layout import checkpoint_checksum

MAX_BARREN = 200
"""Episodes without one that counts, after which a recording gives up."""

Actor = Literal["base", "residual", "expert"]


class CollectError(UserError, RuntimeError):
    """What was asked for cannot be recorded; the message says why."""


@dataclass(frozen=True)
class Goal:
    """When a recording is complete, and what it keeps.

    Attributes:
        episodes: episodes in the dataset; None does not count them.
        successes: of these, successful ones; None does not count them.
        keep_failures: record episodes that failed too.
    """

    episodes: int | None = None
    successes: int | None = None
    keep_failures: bool = False

    def reached(self, successes: Sequence[bool]) -> bool:
        """Whether episodes with these outcomes are enough."""
        if self.successes is not None and sum(successes) < self.successes:
            return False
        return self.episodes is None or len(successes) >= self.episodes


def collect(
    config: TrainConfig,
    root: pathlib.Path,
    goal: Goal,
    actor: Actor = "base",
    checkpoint: pathlib.Path | None = None,
    on_episode: Callable[[int, bool], None] = lambda kept, success: None,
) -> EpisodeWriter:
    """Record until the goal is reached; killed at any moment, the same call goes on.

    Episodes are whole: `env.terminate_when_toppled` is of training.
    Episodes begin in sampled placements, never in the stored init states that evaluation holds
    back. They are kept in the order in which they began, so that quick successes are no more
    frequent than they are. The residual acts without exploration noise, after probing if the
    checkpoint's run probes (PLD's second stage): both parts are kept, `residual` marks the second.
    With `intervention.device` a person takes over whenever they like; `intervened` marks that.

    Args:
        config: environment, base policy, runners and seed; of the checkpoint's run.
        root: of the dataset.
        goal: what is wanted.
        actor: `base`, `residual` (needs `checkpoint`) or `expert`, the simulator's scripted one.
        checkpoint: folder of a residual.
        on_episode: is told of each that ended: 1 if it counts for the goal, else 0; and whether it
            succeeded.

    Returns:
        What was recorded, with the dataset in place.

    Raises:
        ConfigError: environment or base policy cannot be used.
        DataError: the folder holds something else, or another process records into it.
        CollectError: no episode succeeds.
    """
    begun_in(root)  # what it refuses is refused before anything is opened
    whole = dataclasses.replace(config.env, terminate_when_toppled=False)
    config = dataclasses.replace(config, env=whole)
    check_environment(config, learns=False)
    about: dict[str, Any] = {"actor": actor, "checkpoint": None}
    if checkpoint is not None:  # `best` is another one after each better validation
        about["checkpoint"] = checkpoint.resolve().name
        about[CHECKSUM] = checkpoint_checksum(checkpoint)
    if config.intervention.device != "none":
        about["device"] = config.intervention.device
    recording = recording_of(config, algorithm_config(config), **about)
    check_goes_on(root, recording)  # before Ray is started
    with (
        running_algorithm(config, learns=False) as algorithm,
        EpisodeWriter(root, recording) as writer,
    ):
        if checkpoint is not None:
            load_whole(algorithm, checkpoint.resolve())
        if not goal.reached(writer.successes):
            record(algorithm, writer, goal, actor, config.seed, on_episode)
        writer.finish()
    return writer


def record(
    algorithm: OffPolicy,
    writer: EpisodeWriter,
    goal: Goal,
    actor: Actor,
    seed: int,
    on_episode: Callable[[int, bool], None],
) -> None:
    """Play and keep episodes until the goal is reached."""
    runners, begun = algorithm.runners, 0
    order, barren = StartOrder(), 0

    def begin() -> None:
        """Fresh episodes everywhere: a resumed recording, or runner, repeats none.

        What was learnt plays no placement that it learnt from; others play those of a collection,
        so that they can stand for it.
        """
        nonlocal begun
        stands_for_collection = actor != "residual" and not begun
        mixed = stream_seed(RECORDED, seed, len(writer), begun)
        runners.restart(seed * 1_000_003 + len(writer) if stands_for_collection else mixed)
        begun += 1

    begin()
    device = algorithm.config.intervention.device
    how: dict[str, Any] = {
        "base_only": actor != "residual",
        "expert": actor == "expert",
        "intervene": device != "none",
    }
    while True:
        runners.watch()
        if algorithm.restore_env_runners(algorithm.env_runner_group):
            order.begin_anew()  # the clocks of all episodes do, too
            begin()
        request = runners.request(**how, explore=False, keep_probing=True)
        batches = runners.gather(request)
        for ended in ended_episodes(batches):
            order.add(ended)
        for _, columns, summary in order.take(batches):
            kept = summary.success or goal.keep_failures
            counted = summary.success if goal.successes else kept
            barren = 0 if counted else barren + 1
            if kept:
                about = {
                    "probe_steps": summary.probe_steps,
                    "actor": actor,
                    "intervention_count": summary.intervention_count,
                    "intervention_steps": summary.intervention_steps,
                }
                writer.add(columns, about)
            on_episode(int(counted), summary.success)
            if goal.reached(writer.successes):
                return
            if barren >= MAX_BARREN:
                raise barren_error(writer.root, barren, goal)


def barren_error(root: pathlib.Path, barren: int, goal: Goal) -> CollectError:
    """The error of a recording that comes no nearer to its goal."""
    failures = "--episodes=N --keep_failures" if goal.successes else "--keep_failures"
    return CollectError(
        f"{root}: none of {barren} episodes in a row succeeded; what was kept stays, go on with "
        f"another policy in another folder, or give {failures}"
    )
