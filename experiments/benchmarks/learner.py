"""Gradient updates per second of the learner, beside bare PyTorch, LeRobot and RLlib.

Observation 64, action 7, batch 256, two critics and an actor of 256-256 with ReLU, one critic and
one actor step per update, sampling included, one CPU thread. All contestants run in one process, in
many short turns, and each figure is a median over turns: a busy neighbour disturbs all alike.
`auto` contestants are ours with `precision=auto`.

    python experiments/benchmarks/learner.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from columns import transition_columns
from image_update import image_figures
from learner_baselines import (
    ACTION_DIM,
    BATCH,
    EPISODE_LENGTH,
    GAMMA,
    LR,
    NUM_CRITICS,
    OBSERVATION_DIM,
    ROWS,
    TAU,
    WIDTH,
    BatchedCritics,
    RLlibSAC,
    SeparateCritics,
    bare_loop,
    lerobot_sac,
    shut_down_ray,
)

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

BARS = {
    "vs_bare": (">=", 0.9),
    "vs_lerobot": (">=", 2.0),
    "vs_rllib_equal": (">=", 5.0),
    "vs_rllib_default": (">=", 8.0),
    "auto_vs_rllib_equal": (">=", 7.0),  # on a CPU with instructions for bfloat16
    "otf_k8_over_k1": ("<=", 1.8),
    "ensemble10_over_2": ("<=", 3.4),
    "frozen_cache_speedup": (">=", 5.0),
    "vs_bare_float32": (">=", 1.8),
    "k8_vs_float32": (">=", 2.0),
    "n10_vs_float32": (">=", 2.0),
}


def random_ring(
    rows: int = ROWS,
    device: str = "cpu",
    seed: int = 0,
    more: Mapping[str, ColumnSpec] | None = None,
) -> FrameRing:
    """A ring filled with random episodes of 200 transitions, with `more` columns."""
    columns = {**transition_columns(OBSERVATION_DIM, ACTION_DIM), **(more or {})}
    rng = np.random.default_rng(0)
    ring = FrameRing(ReplaySchema(columns, ["observation.state"]), rows, device, seed)
    for _ in range(rows // (EPISODE_LENGTH + 1)):
        shape = {name: (EPISODE_LENGTH + 1, *spec.shape) for name, spec in columns.items()}
        episode = {
            name: np.zeros(shape[name], bool)
            if spec.dtype == "bool"
            else rng.uniform(-1, 1, shape[name]).astype(np.float32)
            for name, spec in columns.items()
        }
        episode["terminated"][-2] = True
        ring.add_episodes(episode, [EPISODE_LENGTH], GAMMA)
    return ring


class Ours:
    """`ResidualSACUpdate` on a `FrameRing`; of N critics two are drawn for each target."""

    def __init__(
        self,
        name: str,
        otf_candidates: int,
        num_critics: int = NUM_CRITICS,
        atoms: int = 1,
        precision: Literal["float32", "auto"] = "float32",
    ) -> None:
        self.name = name
        params = ResidualSACParams(
            actor_delay_updates=0,
            residual_dims=[],
            batch_size=BATCH,
            n_step=1,
            gamma=GAMMA,
            tau=TAU,
            critic_actor_update_ratio=1,
            actor_lr=LR,
            critic_lr=LR,
            temperature_lr=LR,
            num_critics=num_critics,
            num_subsample_critics=NUM_CRITICS,
            actor_reduction="min",
            otf_candidates=otf_candidates,
            backup_entropy=True,
            success_imitation=0.0,
            conservative_weight=0.0,
            ema_decay=0.0,
            log_std_init=-1.0,
            critic_observes_base_action=False,
            hidden_dims=[WIDTH, WIDTH],
            critic_layer_norm=False,
            critic_atoms=atoms,
            precision=precision,
        )
        torch.manual_seed(0)
        networks = ResidualNetworks(OBSERVATION_DIM, ACTION_DIM, params)
        optimizers = make_optimizers(networks, params)
        self.run = ResidualSACUpdate(networks, optimizers, random_ring(), params, seed=0).run


def timed(run: Callable[[int], object], num_updates: int) -> float:
    """Seconds per update."""
    start = time.perf_counter()
    run(num_updates)
    return (time.perf_counter() - start) / num_updates


def measure(rounds: int, num_updates: int, with_rllib: bool) -> dict[str, float]:
    """Figures of one interleaved run; see the module's docstring."""
    contestants = [
        Ours("ours", otf_candidates=1),
        bare_loop(SeparateCritics, "bare_separate"),
        bare_loop(BatchedCritics, "bare_batched"),
        Ours("ours_k8", otf_candidates=8),
        Ours("ours_n10", otf_candidates=1, num_critics=10),
        Ours("ours_51_atoms", otf_candidates=1, atoms=51),
        Ours("auto", otf_candidates=1, precision="auto"),
        Ours("auto_k8", otf_candidates=8, precision="auto"),
        Ours("auto_n10", otf_candidates=1, num_critics=10, precision="auto"),
        Ours("auto_51_atoms", otf_candidates=1, atoms=51, precision="auto"),
        lerobot_sac(),
    ]
    if with_rllib:
        contestants += [
            RLlibSAC("rllib_equal", equal_nets=True),
            RLlibSAC("rllib_equal_uniform", equal_nets=True, uniform_replay=True),
            RLlibSAC("rllib_default", equal_nets=False),
        ]
    torch.set_num_threads(1)
    for contestant in contestants:
        contestant.run(5)
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            share = (
                num_updates if not contestant.name.startswith("rllib") else max(1, num_updates // 3)
            )
            seconds[contestant.name].append(timed(contestant.run, share))
    for contestant in contestants:
        if isinstance(contestant, RLlibSAC):
            contestant.stop()

    if with_rllib:
        shut_down_ray()

    median = {name: statistics.median(values) for name, values in seconds.items()}

    def ratio(of: str, over: str = "ours") -> float:
        return median[of] / median[over]

    figures = {f"{name}_updates_per_s": 1 / value for name, value in median.items()}
    best_bare = min(("bare_separate", "bare_batched"), key=lambda name: median[name])
    figures["vs_bare"] = ratio(best_bare)
    figures["vs_lerobot"] = ratio("lerobot")
    if with_rllib:
        figures["vs_rllib_equal"] = ratio("rllib_equal")
        figures["vs_rllib_equal_uniform"] = ratio("rllib_equal_uniform")
        figures["vs_rllib_default"] = ratio("rllib_default")
        figures["auto_vs_rllib_equal"] = ratio("rllib_equal", "auto")
    figures["otf_k8_over_k1"] = ratio("ours_k8")
    figures["ensemble10_over_2"] = ratio("ours_n10")
    figures["atoms51_over_scalar"] = ratio("ours_51_atoms")
    figures["vs_bare_float32"] = ratio(best_bare, "auto")
    figures["k8_vs_float32"] = ratio("ours_k8", "auto_k8")
    figures["n10_vs_float32"] = ratio("ours_n10", "auto_n10")
    figures["atoms51_vs_float32"] = ratio("ours_51_atoms", "auto_51_atoms")
    figures |= image_figures()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--updates", type=int, default=10, help="updates per contestant and round")
    parser.add_argument("--skip-rllib", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    figures = measure(args.rounds, args.updates, not args.skip_rllib)
    for name, value in figures.items():
        sign, bar = BARS.get(name, ("", 0.0))
        print(f"{name:32s} {value:8.2f}  {sign} {bar}" if sign else f"{name:32s} {value:8.2f}")
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
