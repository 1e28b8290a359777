"""How far a run is: every counter, what the counters owe, and the file that keeps them."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import MANIFEST_FILE, MARK, CheckpointError, check_manifest, damaged
from pld_ray.rllib.trained_base import BASE_POLICY
from pld_ray.rollout.episode import EpisodeSummary
from pld_ray.runs.layout import PROGRESS_FILE

RECENT = 50  # episodes over which `train/...` metrics are taken
RECENT_FIELDS = (
    *("success", "length", "probe_steps", "intervention_count", "intervention_steps"),
    "true_success",
)
REQUIRED = (
    *("phase", "iteration", "env_steps", "updates", "update_debt", "collection_env_steps"),
    "schedule",
)
"""In every release's file."""
OPTIONAL = (
    *("episodes", "stored_steps", "collection_stored_steps", "calql_done", "offline_done"),
    *("next_shard", "intervention_steps"),
    *("control_steps", "late_steps"),
)
"""Counters that later releases added."""

log = logging.getLogger("pld_ray")


@dataclass
class Progress:
    """Counts what was sampled: once, and no more than was stored.

    Attributes:
        schedule: beta over training.
        utd: updates owed for each stored environment step.
        max_staleness: updates; episodes whose first weights are older are not stored. None: all.
        phase: `collect`, `calql`, `offline` or `online`.
        iteration: RLlib's, as of the last save or load.
        env_steps: environment steps, those of the collection included.
        updates: of the critics, those of Cal-QL aside.
        update_debt: updates owed.
        published_updates: behind the weights that the runners have.
        episodes: finished online.
        stored_steps: of these, in the replay.
        collection_env_steps, collection_stored_steps: the same of the collection.
        calql_done: steps of the critic's initialisation.
        offline_done: updates on datasets before the first environment step.
        next_shard: the learner that stores the next batch, modulo their number.
        intervention_steps: environment steps in which a person acted.
        control_steps, late_steps: at a control rate, and those after which the next began late.
        recent_episodes: the last 50.
        base_policy: fingerprint of the frozen one, for checkpoints; None where there is none.
    """

    schedule: ResidualScaleSchedule
    utd: float
    max_staleness: int | None = None
    phase: str = "collect"
    iteration: int = 0
    env_steps: int = 0
    updates: int = 0
    update_debt: float = 0.0
    published_updates: int = 0
    episodes: int = 0
    stored_steps: int = 0
    collection_env_steps: int = 0
    collection_stored_steps: int = 0
    calql_done: int = 0
    offline_done: int = 0
    next_shard: int = 0
    intervention_steps: int = 0
    control_steps: int = 0
    late_steps: int = 0
    recent_episodes: list[EpisodeSummary] = field(default_factory=list)
    base_policy: str | None = None
    _told_of_stale: bool = field(default=False, init=False)

    @property
    def residual_scale(self) -> float:
        """beta_t of the schedule at this moment."""
        return self.schedule.value(self.env_steps - self.collection_env_steps)

    def count(
        self,
        episodes: Sequence[EpisodeSummary],
        num_env_steps: int,
        control_steps: int = 0,
        late_steps: int = 0,
    ) -> None:
        """Count what a runner did: episodes that have ended, and steps, of a control rate too."""
        self.env_steps += num_env_steps
        self.control_steps += control_steps
        self.late_steps += late_steps
        self.episodes += len(episodes)
        for episode in episodes:
            self.intervention_steps += episode.intervention_steps
            if episode.residual_acted and not episode.intervened:
                self.schedule.on_episode(episode.success)
        self.recent_episodes = [*self.recent_episodes, *episodes][-RECENT:]

    def stale(self, episodes: Sequence[EpisodeSummary], metrics: MetricsLogger) -> list[int]:
        """Which of these are too old to be stored; their staleness, in updates, is logged."""
        staleness = [self.updates - episode.weights_updates for episode in episodes]
        for value in staleness:
            metrics.log_value("staleness_mean", value, reduce="mean", window=50)
            metrics.log_value("staleness_max", value, reduce="max", window=50)
        limit = self.max_staleness
        stale = [k for k, value in enumerate(staleness) if limit is not None and value > limit]
        if stale:
            metrics.log_value("num_episodes_too_stale", len(stale), reduce="lifetime_sum")
        if stale and not self._told_of_stale:
            self._told_of_stale = True
            log.warning(
                "an episode begun with weights %d updates old is not stored: max_staleness=%d, by "
                "which long episodes go first; null stores all. train/num_episodes_too_stale "
                "counts those that follow",
                *(staleness[stale[0]], limit),
            )
        return stale

    def owe(self, stored_steps: int) -> None:
        """Steps go into the replay: the update debt grows."""
        self.stored_steps += stored_steps
        self.update_debt += stored_steps * self.utd

    def write_off(self, lost: int, metrics: MetricsLogger) -> None:
        """Take back steps that were counted and then died with their node: they are owed none."""
        self.stored_steps -= lost
        self.update_debt -= lost * self.utd
        if lost:
            metrics.log_value("num_env_steps_lost", lost, reduce="lifetime_sum")

    def take_debt(self, at_most: int | None = None) -> int:
        """Whole updates that are owed, >= 0, or so many of them; they are not owed any more."""
        num_updates = max(0, int(self.update_debt))
        if at_most is not None:
            num_updates = min(num_updates, at_most)
        self.update_debt -= num_updates
        return num_updates

    def recent_metrics(self) -> dict[str, float]:
        """`train/...` of the last online episodes.

        `success_rate` is autonomous: of episodes in which the residual acted and nobody intervened.
        Those with an intervention have an `assisted_success_rate`. From the first one on there are
        `intervention_share` (of the steps), and `intervention_count_mean` and
        `intervention_steps_mean` of an episode too. At a control rate there are `late_steps` and
        `late_step_share`, of all steps. With a reward classifier `classifier_disagreement` is the
        share of episodes whose success it judged otherwise than the environment.
        """
        recent = self.recent_episodes
        columns: dict[str, list[float]] = {
            "train/success_rate": [
                e.success for e in recent if e.residual_acted and not e.intervened
            ],
            "train/episode_len_mean": [e.length for e in recent],
            "train/probe_steps_mean": [e.probe_steps for e in recent],
        }
        if self.intervention_steps and recent:
            columns |= {
                "train/assisted_success_rate": [e.success for e in recent if e.intervened],
                "train/intervention_count_mean": [e.intervention_count for e in recent],
                "train/intervention_steps_mean": [e.intervention_steps for e in recent],
                "train/intervention_share": [
                    sum(e.intervention_steps for e in recent) / sum(e.length for e in recent)
                ],
            }
        if judged := [e for e in recent if e.true_success is not None]:
            disagrees = [float(e.success != e.true_success) for e in judged]
            columns["train/classifier_disagreement"] = disagrees
        if self.control_steps:
            columns |= {
                "train/late_steps": [self.late_steps],
                "train/late_step_share": [self.late_steps / self.control_steps],
            }
        return {name: sum(values) / len(values) for name, values in columns.items() if values}

    # --- the file --------------------------------------------------------------------------------

    def save(self, folder: pathlib.Path) -> None:
        """Write the counters into a checkpoint."""
        state: dict[str, Any] = {name: getattr(self, name) for name in (*REQUIRED, *OPTIONAL)}
        state["schedule"] = self.schedule.state_dict()
        state["recent_episodes"] = [
            {name: getattr(episode, name) for name in RECENT_FIELDS}
            for episode in self.recent_episodes
        ]
        if self.base_policy is not None:
            state[BASE_POLICY] = self.base_policy
        write_json_atomically(folder / PROGRESS_FILE, {**state, MARK: True})

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `save` wrote and `read_progress` has read, any release's."""
        for name in REQUIRED:
            if name != "schedule":
                setattr(self, name, state[name])
        for name in OPTIONAL:
            setattr(self, name, state.get(name, 0))
        self.schedule.load_state_dict(state["schedule"])
        self.recent_episodes = [EpisodeSummary(**e) for e in state.get("recent_episodes", [])]


def read_progress(folder: pathlib.Path) -> dict[str, Any]:
    """The counters of a checkpoint, all of whose files have been checked.

    A checkpoint of a release without manifests is taken as it is, with a warning.

    Raises:
        CheckpointError: the folder is no checkpoint of ours, or a file of it is damaged.
    """
    path = folder / PROGRESS_FILE
    is_checked = check_manifest(folder)
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not a pld-ray checkpoint: {PROGRESS_FILE} is missing; give a folder that "
            "`pld-ray train` wrote under checkpoints/"
        )
    try:
        state = json.loads(path.read_bytes())
        lacking = set(REQUIRED) - state.keys()
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(path, f"it is no JSON object ({error})") from None
    if lacking:
        raise damaged(path, f"it lacks {', '.join(sorted(lacking))}")
    if not is_checked and state.get(MARK):
        raise damaged(folder / MANIFEST_FILE, "it is missing")
    if not is_checked:
        log.warning(
            "%s was written by a release without checksums: damage to it would not be seen", folder
        )
    return state
