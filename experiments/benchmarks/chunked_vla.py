"""What one prefix saves, and what training holds in memory, of a small SmolVLA.

LeRobot's own class with the shape of the real one in small: two cameras of 256 patches each, a
vision encoder deeper than the action expert, chunks of five actions.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.policies.lerobot_actor import LeRobotActor
from pld_ray.replay import ChunkRing

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/policies"))
from tiny_policies import SIDE, STATE, make_observations, save_policy

CANDIDATES, HORIZON, STEPS, BATCH, ACTION_DIM = 32, 5, 10, 16, 7
TEXT = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
VISION = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "image_size": 128}
EPISODES = (12, 15, 9)


def measure(turns: int) -> dict[str, float]:
    """`candidates_speedup` and `peak_memory_ratio`."""
    with tempfile.TemporaryDirectory() as folder:
        actor = small_actor(pathlib.Path(folder))
        speedup = candidates_speedup(actor, turns)
        return {"candidates_speedup": speedup, "peak_memory_ratio": peak_memory_ratio(actor)}


def small_actor(folder: pathlib.Path) -> LeRobotActor:
    """A randomly initialised SmolVLA that trains whole."""
    directory = save_policy(
        "smolvla",
        folder,
        text=TEXT,
        vision=VISION,
        resize_imgs_with_padding=(128, 128),
        train_expert_only=False,
        freeze_vision_encoder=False,
    )
    return LeRobotActor(directory, "open the drawer", HORIZON, STEPS, folder / "tokenizer")


def candidates_speedup(actor: LeRobotActor, turns: int) -> float:
    """Seconds of 32 chunks with a prefix each, all in one batch, over those with one prefix."""
    row = {k: torch.from_numpy(v) for k, v in make_observations(1, 0).items()}
    many = {k: v.expand(CANDIDATES, *v.shape[1:]).contiguous() for k, v in row.items()}
    vector = torch.zeros(CANDIDATES, 8)
    noise = torch.randn(CANDIDATES, 1, *actor.noise_shape)

    def one_prefix() -> Tensor:
        return actor.sample(actor.observe(vector[:1], row), noise)[:, 0]

    def prefix_each() -> Tensor:
        return actor.sample(actor.observe(vector, many), noise.transpose(0, 1))[0]

    with torch.no_grad():
        torch.testing.assert_close(one_prefix(), prefix_each(), atol=1e-3, rtol=1e-3)
        ratios = []
        for _ in range(turns):
            times = []
            for sample in (one_prefix, prefix_each):
                began = time.perf_counter()
                sample()
                times.append(time.perf_counter() - began)
            ratios.append(times[1] / times[0])
    return float(np.median(ratios))


def peak_memory_ratio(actor: LeRobotActor) -> float:
    """Most bytes of tensors alive at once, over what is needed at the least.

    That is the parameters (averages and target critics are some), the optimiser (its moments, and
    the gradients that it steps on) and what the cloning loss of one batch keeps for its gradient.
    """
    update = make_update(actor)
    networks = update.networks
    parameters = nbytes([*networks.parameters(), *networks.buffers()])
    with LiveBytes() as training:
        update.run(2)
        observation = {k: torch.from_numpy(v) for k, v in make_observations(1, 1).items()}
        with torch.inference_mode():
            networks.act(observation, torch.randn(CANDIDATES, 1, *actor.noise_shape))
    moments = nbytes(
        value
        for optimizer in update.optimizers.values()
        for state in optimizer.state.values()
        for value in state.values()
    )
    gradients = nbytes(p for p in networks.parameters() if p.requires_grad)
    batch = update.sample()
    with LiveBytes() as cloning:
        chunks = batch["actions"]
        loss = networks.actor.bc_loss(
            networks.actor.observe(*networks.seen(batch)),
            chunks,
            update.cloning_weights(batch),
            update.noise(len(chunks), *actor.noise_shape),
            torch.rand(len(chunks)),
        )
        activations = cloning.alive()
        del loss
    return (parameters + training.peak) / (parameters + moments + gradients + activations)


def make_update(actor: LeRobotActor) -> ChunkedUpdate:
    """Online training on episodes of noise."""
    params = ACRLPDParams(
        actor="lerobot",
        actor_path=str(actor.checkpoint.directory),
        horizon=HORIZON,
        batch_size=BATCH,
        flow_steps=STEPS,
        bc_episodes="all",
    )
    images = {k: v for k, v in make_observations(1, 0).items() if k != STATE}
    spaces: dict[str, gym.Space] = {STATE: gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)}
    spaces |= {k: gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8) for k in images}
    observations = gym.spaces.Dict(spaces)
    actions = gym.spaces.Box(-1, 1, (ACTION_DIM,), np.float32)
    networks = ChunkedNetworks.of_spaces(observations, actions, params, seeing=actor)
    schema = replay_schema(networks, observations, actions)
    replay = make_replay(schema, params, torch.device("cpu"), 0, ring=ChunkRing)
    rows = sum(EPISODES) + len(EPISODES)
    columns: dict[str, np.ndarray] = make_observations(rows, 0)
    columns["action"] = np.random.default_rng(0).uniform(-1, 1, (rows, ACTION_DIM))
    columns["base_action"] = np.zeros((rows, ACTION_DIM))
    columns |= {name: np.zeros(rows) for name in ("reward", "residual_scale")}
    flags = ("terminated", "truncated", "intervened", "success")
    columns |= {name: np.zeros(rows, bool) for name in flags}
    for ring in (replay.offline, replay.online):
        ring.add_episodes(columns, list(EPISODES), params.gamma)
    return ChunkedUpdate(networks, make_optimizers(networks, params), replay, params)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations inside it made and that are still alive.

    Attributes:
        peak: the most at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {s._cdata for s in storages((args, kwargs))}  # views, and what is changed in place
        for storage in storages(result):
            if storage._cdata not in given:
                self._count(storage)
        return result

    def _count(self, storage: Any) -> None:
        known = self._made.get(storage._cdata)
        if known is not None and not known[0].expired():
            return
        self._total += storage.nbytes() - (known[1] if known else 0)
        self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        if self._total > self.peak:  # those that are gone are still counted: look
            self.peak = max(self.peak, self.alive())

    def alive(self) -> int:
        """Bytes of those that are still there."""
        self._made = {k: made for k, made in self._made.items() if not made[0].expired()}
        self._total = sum(size for _, size in self._made.values())
        return self._total


def storages(tree: Any) -> list[Any]:
    """Of all tensors in it."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def nbytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors, shared ones once."""
    return sum({s._cdata: s.nbytes() for s in storages(list(tensors))}.values())
