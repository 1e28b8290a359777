"""One update of a policy: micro-batches, clipping, optimiser, averaged weights, in this order.

On one process or, with the same numbers, on several: the micro-batches of an update are dealt to
the ranks, and what is summed over micro-batches is summed over ranks.
"""

from __future__ import annotations

import atexit
import json
import math
import pathlib
import signal
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.utils.data import DataLoader, Dataset

from pld_ray.algorithm.nonfinite import NonFiniteTrainingError
from pld_ray.config.finetune import FinetuneParams
from pld_ray.data.training_windows import IS_PAD, TrainingWindows
from pld_ray.files.manifest import damaged
from pld_ray.sharded.activations import recompute_activations
from pld_ray.sharded.components import (
    AVERAGE,
    OPTIMIZER,
    POLICY,
    STATE,
    Components,
    own_tensors,
)
from pld_ray.sharded.optimization import MovingAverage, learning_rate_share, make_optimizer
from pld_ray.sharded.ranks import ALONE, Ranks
from pld_ray.sharded.shards import Sharding, most_held_gb, sum_and_clip
from pld_ray.sharded.trainee import Trainee
from pld_ray.sharded.utilisation import Utilisation

Batch = dict[str, Any]

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
THERE = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
TRAINING, VALIDATION = 0, 1
"""What a draw of noise is for."""
GENTLER = "lower algorithm.learning_rate or algorithm.grad_clip_norm"
BACK = f"{GENTLER}. The weights are as before: go on with --resume from the last checkpoint"
ANEW = f"{GENTLER}, and begin a new run in another --output_dir"
"""What to do where a policy, and not its data, gives a number that is not finite."""


class Trainer:
    """A policy, its optimiser and its average; an update is a function of its number and its data.

    Args:
        trainee: the policy; trained in place.
        params: of the run.
        total: updates of the run, which the learning rate follows.
        seed: of the noise that the policy's loss draws.
        ranks: this process among those that train together. All call the same methods in the same
            order.
        sharding: of more than one; it takes the policy apart.

    Attributes:
        updates: done so far.
    """

    def __init__(
        self,
        trainee: Trainee,
        params: FinetuneParams,
        total: int,
        seed: int,
        ranks: Ranks = ALONE,
        sharding: Sharding | None = None,
    ) -> None:
        self.trainee, self.params, self.total, self.seed = trainee, params, total, seed
        self.ranks, self.policy = ranks, trainee.policy
        self.device = next(self.policy.parameters()).device.type
        self.computes_in_bfloat16 = params.precision == "bfloat16"
        self.average = MovingAverage(self.policy, params.ema_decay)
        if sharding is not None:  # both, as an average of a sharded policy cannot be copied
            for policy in (self.policy, self.average.module):
                sharding.shard(policy, trainee.checkpoint.policy_type)
        if params.activation_checkpointing:  # not of the average, which keeps none
            recompute_activations(self.policy, trainee.checkpoint.policy_type)
        self.optimizer, self.clip_norm = make_optimizer(self.policy, params)
        self.updates = 0

    def update(self, micro_batches: Sequence[Batch]) -> dict[str, float]:
        """Learn from one batch, given as its micro-batches; as if it were one.

        Args:
            micro_batches: those of this rank, see `UpdateBatches`.

        Returns:
            `loss`, `grad_norm` before clipping, `learning_rate`, and the numbers that the policy
            itself reports.

        Raises:
            NonFiniteTrainingError: loss or gradient is NaN or infinite; on every rank.
        """
        share = learning_rate_share(self.updates, self.total, self.params)
        for group in self.optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]
        turns = self.ranks.turns(self.params.accumulation * self.ranks.planned)
        weights = self._weights(turns, micro_batches)
        metrics: dict[str, float] = {}
        for k, batch, weight in zip(turns, micro_batches, weights, strict=True):
            loss, reported = self._loss(self.policy, batch, (TRAINING, self.updates, k))
            (loss * weight).backward()
            for name, value in {"loss": float(loss.detach()), **reported}.items():
                metrics[name] = metrics.get(name, 0.0) + weight * value
        metrics = dict(zip(metrics, self.ranks.sum(list(metrics.values())), strict=True))
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = float(sum_and_clip(trained, self.clip_norm, self.ranks))
        # of all ranks: each of them stops; a loss may be NaN and its gradient none (L1 of NaN)
        for what, value in (("gradient", norm), ("loss", metrics["loss"])):
            if not math.isfinite(value):
                raise NonFiniteTrainingError(self._not_finite(what, micro_batches, BACK))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.policy)
        self.updates += 1
        learning_rate = max(group["lr"] for group in self.optimizer.param_groups)
        return {**metrics, "grad_norm": norm, "learning_rate": learning_rate}

    def _not_finite(self, what: str, batches: Iterable[Batch], otherwise: str) -> str:
        """What to say of a loss or gradient that is NaN or infinite.

        Args:
            what: is not finite.
            batches: that it is of.
            otherwise: what to do where these are finite.
        """
        bad = sorted(
            {
                name
                for batch in batches
                for name, value in batch.items()
                if isinstance(value, Tensor) and value.is_floating_point()
                if not value.isfinite().all()
            }
        )
        cause = (
            f"{', '.join(bad)} of a frame is not finite: `pld-ray data DATASET` finds it; leave "
            "its episode out and begin a new run in another --output_dir"
            if bad
            else f"the data is finite: {otherwise}"
        )
        return f"the {what} is not finite at update {self.updates}; {cause}"

    def utilisation(self) -> Utilisation:
        """To be wrapped around updates."""
        dtype = torch.bfloat16 if self.computes_in_bfloat16 else torch.float32
        return Utilisation(self.device, dtype, self.params.batch_size)

    def memory(self) -> dict[str, float]:
        """`memory/most_gb` of any rank so far; `memory/balance`, the ranks' mean over it."""
        held = self.ranks.gather(most_held_gb(self.device))
        most = max(held)
        return {"memory/most_gb": most, "memory/balance": sum(held) / len(held) / most}

    @torch.no_grad()
    def validation_loss(self, batches: Sequence[Batch]) -> float:
        """Mean loss of the averaged policy; the same noise every time.

        Raises:
            NonFiniteTrainingError: it is NaN or infinite; on every rank.
        """
        average = self.average.module.eval()
        total = weight = 0.0
        for k in self.ranks.turns(len(batches)):
            batch = batches[k % len(batches)]
            loss, _ = self._loss(average, batch, (VALIDATION, 0, k))
            count = self._count(batch) if k < len(batches) else 0.0
            total, weight = total + count * float(loss), weight + count
        total, weight = self.ranks.sum([total, weight])
        if not math.isfinite(total):
            mine = (batches[k % len(batches)] for k in self.ranks.turns(len(batches)))
            raise NonFiniteTrainingError(self._not_finite("validation loss", mine, ANEW))
        return total / weight

    def _loss(
        self, policy: Any, batch: Batch, noise: tuple[int, int, int]
    ) -> tuple[Tensor, dict[str, float]]:
        """LeRobot's loss of a prepared batch, with noise of its own."""
        prepared = self.trainee.preprocess(dict(batch))
        with torch.random.fork_rng():
            torch.manual_seed(int(np.random.SeedSequence([self.seed, *noise]).generate_state(1)[0]))
            with torch.autocast(self.device, torch.bfloat16, enabled=self.computes_in_bfloat16):
                loss, reported = policy(prepared)
        numbers = {
            name: float(value)
            for name, value in (reported or {}).items()
            if isinstance(value, int | float) and name != "loss"
        }
        return loss, numbers

    def _weights(self, turns: list[int], micro_batches: Sequence[Batch]) -> list[float]:
        """Each micro-batch's part of the mean over those of all ranks."""
        parts = self.params.accumulation * self.ranks.planned
        counts = [
            self._count(batch) if k < parts else 0.0
            for k, batch in zip(turns, micro_batches, strict=True)
        ]
        (total,) = self.ranks.sum([sum(counts)])
        return [count / total for count in counts]

    def _count(self, batch: Batch) -> float:
        """What the loss of a batch is a mean over."""
        is_pad = batch[IS_PAD]
        return float((~is_pad).sum() if self.trainee.counts_steps else len(is_pad))

    # --- components ------------------------------------------------------------------------------

    def components(self) -> Components | None:
        """Everything that training needs to go on, gathered; the first rank's.

        Its host holds them beside what it trains with until they are written.
        """
        policy = own_tensors(get_model_state_dict(self.policy, options=FULL))
        average = own_tensors(self.average_state())
        optimizer: Any = get_optimizer_state_dict(self.policy, self.optimizer, options=FULL)
        if not self.ranks.first:  # which is given nothing
            return None
        moments = {
            f"{parameter}/{name}": value
            for parameter, values in optimizer.pop("state").items()
            for name, value in values.items()
        }
        state = {
            "updates": self.updates,
            "averaged": int(self.average.n_averaged),
            "param_groups": optimizer["param_groups"],
        }
        tensors = {POLICY: policy, AVERAGE: average, OPTIMIZER: own_tensors(moments)}
        return Components(tensors, state)

    def load(self, folder: pathlib.Path) -> None:
        """Go on from components that were written.

        Raises:
            CheckpointError: a file is missing, damaged, or of another policy.
        """
        try:
            state = json.loads((folder / STATE).read_text())
            for module, name in ((self.policy, POLICY), (self.average.module, AVERAGE)):
                weights: dict[str, Any] = {**load_file(folder / name)}
                set_model_state_dict(module, weights, options=FULL)
            optimizer: dict[str, Any] = {"state": {}, "param_groups": state["param_groups"]}
            for place, value in load_file(folder / OPTIMIZER).items():
                parameter, _, name = place.rpartition("/")
                optimizer["state"].setdefault(parameter, {})[name] = value
            set_optimizer_state_dict(self.policy, self.optimizer, optimizer, options=THERE)
            for name, parameter in self.policy.named_parameters():
                if name not in optimizer["state"]:  # it never had a gradient
                    self.optimizer.state.pop(parameter, None)
            self.average.n_averaged.fill_(state["averaged"])
            self.updates = int(state["updates"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise damaged(folder, f"it does not fit this policy ({reason})") from None

    def average_state(self) -> dict[str, Any]:
        """The averaged policy's weights, whole, on the host; empty but on the first rank."""
        return get_model_state_dict(self.average.module, options=FULL)


class UpdateBatches(Dataset):
    """The micro-batches of each update that a rank takes, by the update's number."""

    def __init__(self, windows: TrainingWindows, params: FinetuneParams, ranks: Ranks) -> None:
        self.windows, self.batch_size, self.ranks = windows, params.batch_size, ranks
        self.parts = params.accumulation * ranks.planned

    def __getitem__(self, update: int) -> list[Batch]:
        rows = self.windows.rows_of_update(update, self.batch_size)
        parts = np.split(rows, self.parts)
        return [self.windows.batch(parts[k % self.parts]) for k in self.ranks.turns(self.parts)]


def batches_from(
    windows: TrainingWindows,
    params: FinetuneParams,
    updates: range,
    workers: int,
    ranks: Ranks = ALONE,
) -> Iterator[list[Batch]]:
    """A rank's micro-batches of these updates in their order, read ahead by `workers` processes."""
    dataset = UpdateBatches(windows, params, ranks)
    sampler: Any = updates
    loader = DataLoader(dataset, None, sampler=sampler, num_workers=workers)
    # a job that is stopped signals all of its processes: readers have to live until the run has
    # ended its update, else DataLoader raises; they inherit this from their first instruction on
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        reader = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for worker in getattr(reader, "_workers", ()):  # multiprocessing would wait for it at the exit
        atexit.register(end_reader, worker)
    return reader


def end_reader(worker: BaseProcess) -> None:
    """Without DataLoader's handler, which raises RuntimeError wherever it hears of the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    worker.kill()


class ValidationBatches(Sequence[Batch]):
    """Evenly spread windows, at most `most`, in batches that are read when they are asked for."""

    def __init__(self, windows: TrainingWindows, batch_size: int, most: int = 2048) -> None:
        number = min(len(windows.starts), most)
        last = len(windows.starts) - 1
        rows = windows.starts[np.unique(np.linspace(0, last, number).round().astype(np.int64))]
        self.windows = windows
        self.rows = [rows[k : k + batch_size] for k in range(0, len(rows), batch_size)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: Any) -> Any:
        return self.windows.batch(self.rows[k])
