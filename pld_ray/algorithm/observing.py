"""What networks do with an observation before anything is learnt of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pld_ray.columns import TASK_INDEX
from pld_ray.networks.augmentation import random_shift
from pld_ray.networks.encoders import EncoderInputs, feature_key, frozen_features
from pld_ray.networks.normalizer import ObservationNormalizer

Batch = Mapping[str, Tensor]


class Seen(NamedTuple):
    """What an encoder is given of B observations, in the order of its arguments."""

    vector: Tensor
    """Normalised, [B, D]."""
    columns: Mapping[str, Tensor]
    """Camera -> images [B, H, W, 3] uint8, or feature maps [B, C, h, w] of a frozen encoder."""
    task: Tensor | None
    """Task numbers [B] int64."""


class ObservingNetworks(nn.Module):
    """Observation statistics, cameras, the bounds of the action space, and what of it all acts.

    A frozen vision encoder is no submodule: it is built alike everywhere (`frozen_features`) and
    never travels with the weights.

    Args:
        params: `LearnerParams`.
        inputs: what an observation consists of.
        observation_keys: columns of an observation that make the vector, in order.
        action_dim: A.
        low, high: bounds of the action space, scalars or [A].

    Attributes:
        image_columns: camera -> the column it is read from: the images, or their frozen features.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self,
        params: Any,
        inputs: EncoderInputs,
        observation_keys: Sequence[str],
        action_dim: int,
        low: float | np.ndarray,
        high: float | np.ndarray,
    ) -> None:
        super().__init__()
        self.params, self.observation_keys = params, list(observation_keys)
        self.action_dim = action_dim
        self.normalizer = ObservationNormalizer(inputs.vector_dim)
        self.frozen_features = frozen_features(inputs, params)
        self.image_columns = {
            key: feature_key(key) if self.frozen_features else key for key in inputs.images
        }
        for name, bound in (("action_low", low), ("action_high", high)):
            values = np.broadcast_to(np.float32(bound), action_dim)
            self.register_buffer(name, torch.tensor(values.copy()))

    def as_batch(self, observation: Batch) -> dict[str, Tensor]:
        """An observation as the replay would give it: one vector, features in place of images."""
        vectors = [observation[key].float() for key in self.observation_keys]
        batch = {"observation": torch.cat([v.reshape(len(v), -1) for v in vectors], dim=-1)}
        for key, column in self.image_columns.items():
            image, frozen = observation[key], self.frozen_features
            batch[column] = image if frozen is None else frozen.compute(image)
        if TASK_INDEX in observation:
            batch[TASK_INDEX] = observation[TASK_INDEX]
        return batch

    def seen(self, batch: Batch, successor: bool = False) -> Seen:
        """What an encoder is given of a batch's observations, or of their successors.

        Args:
            batch: as the replay samples it, or `as_batch` of an observation.
        """
        vector = self.normalizer(batch["next_observation" if successor else "observation"])
        prefix = "next." if successor else ""
        columns = {key: batch[prefix + column] for key, column in self.image_columns.items()}
        task = batch.get(TASK_INDEX)
        return Seen(vector, columns, None if task is None else task.long())

    def shift_images(self, batch: dict[str, Tensor], generator: torch.Generator) -> None:
        """Shift the images of a trained vision encoder (DrQ), in the batch."""
        params = self.params
        if params.vision_encoder_name == "none" or params.freeze_vision_encoder:
            return
        for column in self.image_columns.values() if params.random_shift_pad else ():
            for key in (column, f"next.{column}"):
                batch[key] = random_shift(batch[key], params.random_shift_pad, generator)

    # --- what travels ----------------------------------------------------------------------------

    @property
    def trained_only(self) -> Sequence[str]:
        """The parts that no action needs."""
        raise NotImplementedError

    def keep_what_acts(self) -> None:
        """Drop all that no action needs."""
        for name in self.trained_only:
            setattr(self, name, None)

    def acting_state(self) -> dict[str, Tensor]:
        """Of the state, what `keep_what_acts` keeps."""
        left_out = self.trained_only
        return {k: v for k, v in self.state_dict().items() if k.split(".")[0] not in left_out}
