"""Updates per second of Q-chunking beside a bare PyTorch loop of the same arithmetic.

Observation 32, action 7, chunks of 5, windows drawn from a ring, two scalar critics and a flow of
256-256, four candidates in the target, ten Euler steps, batch 256, one CPU thread. Both run in one
process in short turns by turns, and each figure is a median over turns.

    python experiments/benchmarks/chunked.py --json

- `updates_vs_bare`: our updates per second over the bare loop's. The bar is 0.9.
- `vs_qc`: ours over those of ColinQiyangLi/qc on JAX, same shapes, one core each by turns, both
  drawing each batch from as many rows; the bar is 1.0. Null without `--qc_repo=DIR` (a checkout of
  it) and `--qc_python=BIN` (a Python with jax, flax, optax, distrax and ml_collections).
- `vs_qc_given_batch`: where theirs learn from one batch that is already drawn.
- `vs_qc_auto`: with `precision: auto`, bfloat16 where the CPU has it; theirs stay float32.
- `candidates_speedup`: 32 chunks of a small SmolVLA with a prefix each, over those with one prefix;
  the bar is 5.
- `peak_memory_ratio`: most bytes alive in its online training, over parameters, optimiser and one
  batch's activations (`chunked_vla.py` says what counts as what); the bar is 1.2.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.replay import ChunkRing, ColumnSpec, ReplaySchema, SymmetricReplay

OBSERVATION_DIM, ACTION_DIM, HORIZON, WIDTH, BATCH = 32, 7, 5, 256, 256
CANDIDATES, FLOW_STEPS, CRITICS = 4, 10, 2
GAMMA, TAU, LR, EMA = 0.99, 0.005, 3e-4, 0.999
EPISODES, EPISODE_LENGTH = 100, 100
BARS = "updates_vs_bare 0.9, vs_qc 1.0, candidates_speedup 5, peak_memory_ratio at most 1.2"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--updates", type=int, default=10, help="of a turn")
    parser.add_argument("--qc_repo", help="checkout of ColinQiyangLi/qc")
    parser.add_argument("--qc_python", help="a Python that has what it needs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ours, bare = pld_ray_loop("float32"), bare_loop()
    ours_auto = pld_ray_loop("auto")
    qc = qc_loop(arguments.qc_python, arguments.qc_repo) if arguments.qc_repo else None
    ratios, rates = [], []
    against_qc: dict[str, list[float]] = {"drawn": [], "given": [], "auto": []}
    for _ in range(arguments.turns):
        own, other = seconds(ours, arguments.updates), seconds(bare, arguments.updates)
        ratios.append(other / own)
        rates.append(arguments.updates / own)
        if qc is not None:
            drawn = qc(arguments.updates, "drawn")
            against_qc["drawn"].append(drawn / own)
            against_qc["given"].append(qc(arguments.updates, "given") / own)
            against_qc["auto"].append(drawn / seconds(ours_auto, arguments.updates))
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import chunked_vla

    result = {
        "updates_vs_bare": round(statistics.median(ratios), 3),
        "updates_per_s": round(statistics.median(rates), 1),
        "vs_qc": median_or_none(against_qc["drawn"]),
        "vs_qc_given_batch": median_or_none(against_qc["given"]),
        "vs_qc_auto": median_or_none(against_qc["auto"]),
        **{name: round(value, 3) for name, value in chunked_vla.measure(arguments.turns).items()},
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:20} {value}")
    print(f"bars: {BARS}")


def median_or_none(values: list[float]) -> float | None:
    """The median, if there is one."""
    return round(statistics.median(values), 3) if values else None


def qc_loop(python: str | None, repository: str) -> Callable[[int, str], float]:
    """Seconds of so many updates of ColinQiyangLi/qc, in a process of its own (`chunked_qc.py`)."""
    shapes = {
        "rows": 2 * EPISODES * EPISODE_LENGTH,
        "episode_length": EPISODE_LENGTH,
        "batch": BATCH,
        "observation": OBSERVATION_DIM,
        "action": ACTION_DIM,
        "horizon": HORIZON,
        "width": WIDTH,
        "critics": CRITICS,
        "candidates": CANDIDATES,
        "flow_steps": FLOW_STEPS,
    }
    one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    process = subprocess.Popen(
        [
            "taskset",
            "--cpu-list",
            str(min(os.sched_getaffinity(0))),
            python or sys.executable,
            str(pathlib.Path(__file__).with_name("chunked_qc.py")),
            repository,
            json.dumps(shapes),
        ],
        env={**os.environ, "XLA_FLAGS": one_thread, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(number: int, kind: str) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number} {kind}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    for kind in ("drawn", "given"):
        run(2, kind)  # compiles
    return run


def seconds(update: Callable[[int], object], number: int) -> float:
    """Wall time of so many updates."""
    began = time.perf_counter()
    update(number)
    return time.perf_counter() - began


def pld_ray_loop(precision: str) -> Callable[[int], object]:
    """`ChunkedUpdate` on a `SymmetricReplay`."""
    params = ACRLPDParams(
        horizon=HORIZON,
        batch_size=BATCH,
        hidden_dims=[WIDTH, WIDTH],
        num_critics=CRITICS,
        num_subsample_critics=CRITICS,
        target_candidates=CANDIDATES,
        flow_steps=FLOW_STEPS,
        critic_atoms=1,
        precision=precision,
        bc_episodes="all",
        positive_share=0.0,
    )
    networks = ChunkedNetworks(OBSERVATION_DIM, ACTION_DIM, params)
    replay = SymmetricReplay(random_ring(0), random_ring(1))
    return ChunkedUpdate(networks, make_optimizers(networks, params), replay, params).run


def random_ring(seed: int) -> ChunkRing:
    """Episodes of noise."""
    rng = np.random.default_rng(seed)
    rows = EPISODES * (EPISODE_LENGTH + 1)
    flags = ("terminated", "truncated", "intervened", "success")
    columns = {
        "observation.state": rng.standard_normal((rows, OBSERVATION_DIM), dtype=np.float32),
        "action": rng.uniform(-1, 1, (rows, ACTION_DIM)).astype(np.float32),
        "base_action": np.zeros((rows, ACTION_DIM), np.float32),
        "reward": np.zeros(rows, np.float32),
        "residual_scale": np.zeros(rows, np.float32),
        **{name: np.zeros(rows, bool) for name in flags},
    }
    specs = {n: ColumnSpec(v.shape[1:], str(v.dtype)) for n, v in columns.items()}
    ring = ChunkRing(ReplaySchema(specs, ["observation.state"]), rows, seed=seed)
    ring.add_episodes(columns, [EPISODE_LENGTH] * EPISODES, GAMMA)
    return ring


def bare_loop() -> Callable[[int], object]:
    """The same in one closure: no options, no figures, no checks, windows stored as rows."""
    torch.manual_seed(0)
    size = HORIZON * ACTION_DIM
    flow, ema = Flow(size), Flow(size)
    ema.load_state_dict(flow.state_dict())
    q = Critics(OBSERVATION_DIM + size)
    target = copy.deepcopy(q).requires_grad_(False)
    q_parameters, flow_parameters = list(q.parameters()), list(flow.parameters())
    target_parameters, ema_parameters = list(target.parameters()), list(ema.parameters())
    q_optimizer = torch.optim.AdamW(q_parameters, LR, weight_decay=0.0, fused=True)
    flow_optimizer = torch.optim.AdamW(flow_parameters, LR, weight_decay=0.0, fused=True)
    widths = OBSERVATION_DIM, OBSERVATION_DIM, size, HORIZON, 1, 1
    rows = torch.rand(2 * EPISODES * EPISODE_LENGTH, sum(widths))

    def update() -> None:
        batch = rows.index_select(0, torch.randint(len(rows), (BATCH,)))
        x, x2, chunk, valid, reward, discount = batch.split(widths, 1)
        with torch.no_grad():
            z = torch.randn(CANDIDATES, BATCH, size)
            context = flow.context(x2)
            for k in range(FLOW_STEPS):
                z = z - flow(context, z, 1 - k / FLOW_STEPS) / FLOW_STEPS
            z.clamp_(-1, 1)
            wide = x2.expand(CANDIDATES, -1, -1).reshape(CANDIDATES * BATCH, -1)
            scores = q(torch.cat((wide, z.reshape(CANDIDATES * BATCH, -1)), 1))
            best = scores.mean(0).view(CANDIDATES, BATCH).argmax(0)
            value = target(torch.cat((x2, z[best, torch.arange(BATCH)]), 1)).amin(0)
            y = reward[:, 0] + discount[:, 0] * value
        loss = (q(torch.cat((x, chunk), 1)) - y).square().mean(-1).sum()
        q_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        q_optimizer.step()
        tau = 0.999 * torch.rand(BATCH, 1) ** (1 / 1.5) + 0.001
        noise = torch.randn(BATCH, size)
        v = flow(flow.context(x), tau * noise + (1 - tau) * chunk, tau)
        error = (v - (noise - chunk)).square().view(BATCH, HORIZON, -1).mean(-1)
        loss = (error * valid).sum() / valid.sum()
        flow_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        flow_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(target_parameters, q_parameters, TAU)
            torch._foreach_lerp_(ema_parameters, flow_parameters, 1 - EMA)

    def run(number: int) -> None:
        for _ in range(number):
            update()

    return run


class Flow(nn.Module):
    """The velocity field, the observation's part of its first layer apart."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.context = nn.Linear(OBSERVATION_DIM, WIDTH)
        self.entry, self.time = nn.Linear(size, WIDTH, bias=False), nn.Parameter(torch.zeros(WIDTH))
        self.middle, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, size)

    def forward(self, context: Tensor, x: Tensor, tau: Tensor | float) -> Tensor:
        hidden = F.gelu(self.entry(x) + context + tau * self.time)
        return self.last(F.gelu(self.middle(hidden)))


class Critics(nn.Module):
    """Two MLPs with LayerNorm, a batched product per layer, the last one as a product and a sum."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        widths = (inputs, WIDTH), (WIDTH, WIDTH), (1, WIDTH)
        self.weights = nn.ParameterList(torch.randn(CRITICS, *w) / w[0] ** 0.5 for w in widths)
        biases = (1, WIDTH), (1, WIDTH), (1,)
        self.biases = nn.ParameterList(torch.zeros(CRITICS, *b) for b in biases)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs.expand(CRITICS, -1, -1)
        for weight, bias in zip(self.weights[:2], self.biases[:2], strict=True):
            hidden = F.relu_(F.layer_norm(torch.baddbmm(bias, hidden, weight), (WIDTH,)))
        return (hidden * self.weights[2]).sum(-1) + self.biases[2]


if __name__ == "__main__":
    main()
