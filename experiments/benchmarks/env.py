"""How fast a state-only environment steps: ours against LIBERO's own `ControlEnv.step`.

    python experiments/benchmarks/env.py --json

Both environments play the same episodes in one process, in alternating blocks so that a busy
neighbour slows down both. LIBERO's runs with its leanest settings: no renderer, no camera
observations, soft resets. The bar is `fast_over_stock` >= 1.4.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from envs import LiberoEnv
from envs.pld_tabletop import DEFAULT_TASK, SUITE
from envs.suites import find_task

BAR = 1.4


def build_stock(task: str):  # type: ignore[no-untyped-def]
    """LIBERO's environment without any of our stepping code."""
    from libero.libero.envs.env_wrapper import ControlEnv

    return ControlEnv(
        bddl_file_name=str(find_task(SUITE, task).bddl_file),
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        ignore_done=True,
        hard_reset=False,
    )


def seconds(step: Callable[[np.ndarray], object], actions: np.ndarray) -> tuple[float, float]:
    """Wall and CPU seconds for one pass over `actions` [steps, 7]."""
    start, cpu = time.perf_counter(), time.process_time()
    for action in actions:
        step(action)
    return time.perf_counter() - start, time.process_time() - cpu


def measure(task: str, blocks: int, block_steps: int, seed: int) -> dict[str, float | str | int]:
    """Median milliseconds per step over `blocks` alternating blocks of `block_steps` steps."""
    rng = np.random.default_rng(seed)
    env = LiberoEnv(SUITE, task, episode_length=10**9)
    env.reset(seed=seed)
    stock = build_stock(task)
    warm_up = rng.uniform(-1.0, 1.0, (20, 7))  # compiles robosuite's and our numba functions
    seconds(env.step, warm_up)
    stock.env.reset()
    seconds(stock.step, warm_up)

    fast_times, stock_times, reset_times = [], [], []
    for _ in range(blocks):
        actions = rng.uniform(-1.0, 1.0, (block_steps, 7))
        start = time.perf_counter()
        env.reset()
        reset_times.append(time.perf_counter() - start)
        stock.env.reset()
        fast_times.append(seconds(env.step, actions))
        stock_times.append(seconds(stock.step, actions))
    env.close()
    stock.close()

    wall, cpu = np.median(fast_times, axis=0) / block_steps
    stock_wall = np.median(stock_times, axis=0)[0] / block_steps
    ratios = [s[0] / f[0] for s, f in zip(stock_times, fast_times, strict=True)]
    return {
        "benchmark": "env",
        "task": task,
        "fast_over_stock": round(statistics.median(ratios), 3),
        "bar": BAR,
        "steps_per_s": round(1.0 / wall, 1),
        "fast_ms_per_step": round(1e3 * wall, 3),
        "fast_cpu_ms_per_step": round(1e3 * cpu, 3),
        "stock_ms_per_step": round(1e3 * stock_wall, 3),
        "reset_ms": round(1e3 * statistics.median(reset_times), 2),
        "blocks": blocks,
        "block_steps": block_steps,
        "seed": seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default=DEFAULT_TASK)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--block-steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args()
    result = measure(options.task, options.blocks, options.block_steps, options.seed)
    passed = float(result["fast_over_stock"]) >= BAR
    print(
        f"{result['task']}: {result['fast_ms_per_step']} ms per step "
        f"({result['steps_per_s']} steps/s), LIBERO {result['stock_ms_per_step']} ms, "
        f"{result['fast_over_stock']} times faster (bar {BAR}: {'met' if passed else 'MISSED'}), "
        f"reset {result['reset_ms']} ms with its settling steps"
    )
    if options.json:
        print(json.dumps(result))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
