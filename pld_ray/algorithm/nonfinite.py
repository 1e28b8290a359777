"""Losses and gradients that are not finite, found before anything spoilt is published."""

from __future__ import annotations

import math
import pathlib

import torch
from torch import Tensor

from pld_ray.errors import UserError
from pld_ray.files.tensors import save_tensors

CHECKS_AT_ONCE_ON_GPU = 32  # a check there waits for the device

Batch = dict[str, Tensor]


class NonFiniteLossError(RuntimeError):
    """A loss or a gradient is NaN or infinite; made with `of`, copied from its message.

    Attributes:
        name: `critic_loss`, `actor_loss`, `temperature_loss`, `discrete_critic_loss`, or
            `critic_grad_norm` and so on where the loss was finite and its gradient was not.
        batch: the sampled batch it was computed from, before normalisation.
        step: number of the update, counted from 0 over the whole run.
    """

    name: str = ""
    batch: Batch = {}  # replaced, never written to
    step: int = 0

    @classmethod
    def of(cls, name: str, batch: Batch, step: int) -> NonFiniteLossError:
        """The error of this loss, with a message that says whether the batch is to blame."""
        bad = [key for key, t in batch.items() if t.is_floating_point() and not t.isfinite().all()]
        cause = (
            f"non-finite in the batch: {', '.join(bad)}" if bad else "the batch itself is finite"
        )
        error = cls(f"{name} is not finite at update {step}; {cause}")
        error.name, error.batch, error.step = name, batch, step
        return error


class NonFiniteTrainingError(UserError, RuntimeError):
    """Training stopped at a loss that is not finite; the message names it and the saved batch."""

    @classmethod
    def of(cls, error: NonFiniteLossError, folder: str | None) -> NonFiniteTrainingError:
        """The error, with the offending batch saved in `folder`, and what to do about it."""
        saved = ""
        if folder is not None:
            path = pathlib.Path(folder) / f"nonfinite_{error.name}_{error.step}.safetensors"
            batch = {k: torch.as_tensor(v).contiguous().cpu() for k, v in error.batch.items()}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                save_tensors(batch, path)
                saved = f"; the batch is in {path}"
            except OSError as why:
                saved = f"; the batch could not be kept ({why})"
        return cls(
            f"{error.name} is not finite at update {error.step}{saved}. Training stopped before "
            "the weights were published: lower the learning rate or set grad_clip_norm, then "
            "resume from the last checkpoint"
        )


class LossChecks:
    """Looks at losses and gradient norms, several together where a look waits for the device.

    Args:
        device: of the losses.
        at_once: losses looked at together; None is 1 on the CPU, 32 on a GPU.
    """

    def __init__(self, device: torch.device, at_once: int | None = None) -> None:
        self.at_once = at_once or (1 if device.type == "cpu" else CHECKS_AT_ONCE_ON_GPU)
        self._pending: list[tuple[str, Tensor, Tensor, Batch, int]] = []

    def clear(self) -> None:
        """Forget what has not been looked at."""
        self._pending = []

    def add(self, name: str, loss: Tensor, norm: Tensor, batch: Batch, step: int) -> None:
        """Keep one loss and its gradient's norm for the next look; look if it is time.

        Raises:
            NonFiniteLossError: one that was looked at is not finite.
        """
        self._pending.append((name, loss, norm, batch, step))
        if len(self._pending) >= self.at_once:
            self.look()

    def look(self) -> None:
        """Look at everything kept; raises as `add`."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        values = torch.stack([value for entry in pending for value in entry[1:3]]).tolist()
        for index, (name, _, _, batch, step) in enumerate(pending):
            for value, kind in zip(values[2 * index :], ("loss", "grad_norm"), strict=False):
                if not math.isfinite(value):
                    raise NonFiniteLossError.of(f"{name}_{kind}", batch, step)
