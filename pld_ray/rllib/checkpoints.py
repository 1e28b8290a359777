"""What a checkpoint of RLlib's has beside it here: the replay, the counters, all without pickle."""

from __future__ import annotations

import pathlib
from typing import Any

import pyarrow.fs
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
)

from pld_ray.errors import user_error
from pld_ray.files.manifest import CheckpointError, write_manifest
from pld_ray.files.state_tree import StateFileError
from pld_ray.replay.storage import ReplayFileError
from pld_ray.rllib.collection import sampled_steps
from pld_ray.rllib.learners import Learners, losses_told
from pld_ray.rllib.progress import Progress, read_progress


class Checkpoints(Algorithm):
    """An algorithm whose checkpoints hold all that a run needs, however they are asked for."""

    progress: Progress
    learners: Learners
    collection: Any

    def drain(self) -> None:
        """Return when nothing that was submitted to the learners is outstanding."""
        raise NotImplementedError

    def restart(self) -> None:
        """Runners begin new episodes, with the weights that are restored."""
        raise NotImplementedError

    def save_to_path(
        self, path: Any = None, *, state: Any = None, filesystem: Any = None, **kwargs: Any
    ) -> str:
        """RLlib's own checkpoint, and beside it, without pickle, all that a run needs.

        `learner.json` / `learner.safetensors` hold networks, optimisers and the update's own
        state, `replay/` both rings, `residual_sac.json` the counters, `collection.*` what has been
        collected so far, `manifest.json` the checksums of all these.

        Args:
            path: a folder of this machine, or its `file://` address; None makes one.
            state: of RLlib's `get_state`: that alone is written then, as RLlib does.
            filesystem, kwargs: RLlib's.

        Raises:
            ValueError: the path is not on this machine.
        """
        if path is not None and state is None:
            local_folder(path, filesystem)
        self.drain()
        with losses_told(self.learner_group):
            saved: str = super().save_to_path(path, state=state, filesystem=filesystem, **kwargs)
        if state is None:
            self._save_beside(pathlib.Path(saved))
        return saved

    def _save_beside(self, folder: pathlib.Path) -> None:
        self.learners.save(str(folder))
        if self.progress.phase == "collect":
            self.collection.save(folder)
        self.progress.iteration = self.iteration
        self.progress.save(folder)
        write_manifest(folder)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """What `save_to_path` wrote, RLlib's own part aside; runners start new episodes.

        Raises:
            CheckpointError: the folder is no checkpoint of ours, or a file of it is damaged.
            ValueError: a part of it is of other spaces or of another number of learners.
        """
        folder = local_folder(checkpoint_dir)
        state = read_progress(folder)
        self.drain()
        try:
            self.learners.load(str(folder))
            self.progress.restore(state)
            if self.progress.phase == "collect":
                self.collection.load(folder)
        except (StateFileError, ReplayFileError) as error:
            raise CheckpointError(str(user_error(error))) from error
        self._iteration = self.progress.iteration
        self._count_on()
        self.restart()
        make_callback(
            "on_checkpoint_loaded",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_checkpoint_loaded,
            kwargs={"algorithm": self},
        )

    def _count_on(self) -> None:
        """RLlib's lifetime counters stand where ours do: trials end by them."""
        key = (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME)
        sampled = self.progress.env_steps - self.metrics.peek(key, default=0)
        self.metrics.aggregate([sampled_steps(sampled)], key=ENV_RUNNER_RESULTS)
        updates = (LEARNER_RESULTS, ALL_MODULES, "num_updates_lifetime")
        made = self.progress.updates - self.metrics.peek(updates, default=0)
        self.metrics.log_value(updates, made, reduce="lifetime_sum")

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's restore (`from_checkpoint`), then ours: the replay and the counters too.

        A `component` is restored alone, as RLlib does.

        Raises:
            CheckpointError: see `load_checkpoint`; a checkpoint that lacks ours is none.
            ValueError: the path is not on this machine.
        """
        if kwargs.get("component") is not None:
            super().restore_from_path(path, *args, **kwargs)
            return
        folder = local_folder(path, kwargs.get("filesystem"))
        read_progress(folder)
        super().restore_from_path(path, *args, **kwargs)
        self.load_checkpoint(str(folder))


def local_folder(path: Any, filesystem: Any = None) -> pathlib.Path:
    """The folder of this machine that RLlib is told of, as a path or as a `file://` address.

    Raises:
        ValueError: it is elsewhere.
    """
    where = str(path)
    if filesystem is None and "://" in where:
        filesystem, where = pyarrow.fs.FileSystem.from_uri(where)
    if not isinstance(filesystem, pyarrow.fs.LocalFileSystem | None):
        raise ValueError(
            f"{path}: checkpoints here are folders of this machine; copy one there, or from there"
        )
    return pathlib.Path(where)
