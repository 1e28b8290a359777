"""How fast our environments step, against LIBERO's own and against LeRobot's.

    python experiments/benchmarks/env.py --json

Three comparisons, each in one process in alternating blocks, so that a busy neighbour slows down
both sides:

- `pld_tabletop`, state only, against LIBERO's `ControlEnv.step` with its leanest settings (no
  renderer, no camera observations, soft resets): `fast_over_stock` >= 1.4.
- a task of LIBERO, state only, against the same: `libero_state_vs_stock` >= 1.5.
- the same task with two cameras of 128 x 128 pixels and fast rendering against LeRobot's
  `LiberoEnv`: `libero_image_vs_lerobot` >= 2. Reference rendering is reported beside it. These are
  steps per second of processor time, because a software renderer uses several cores.

The last two need LIBERO's assets (see `envs.assets`) and the last one a GL library; without them
they are null.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from envs import LiberoEnv, assets, bootstrap, simulation
from envs.pld_tabletop import DEFAULT_TASK, SUITE
from envs.suites import find_task

BARS = {"fast_over_stock": 1.4, "libero_state_vs_stock": 1.5, "libero_image_vs_lerobot": 2.0}
FOREVER = 10**9
IMAGE_SIZE = 128

Step = Callable[[np.ndarray], object]


def seconds(step: Step, actions: np.ndarray) -> tuple[float, float]:
    """Wall and CPU seconds for one pass over `actions` [steps, 7]."""
    start, cpu = time.perf_counter(), time.process_time()
    for action in actions:
        step(action)
    return time.perf_counter() - start, time.process_time() - cpu


def timed(call: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def alternate(
    contestants: Mapping[str, tuple[Callable[[], object], Step]],
    blocks: int,
    block_steps: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Name -> seconds per step [blocks, 2] (wall, CPU) of (reset, step) pairs, in alternation."""
    rng = np.random.default_rng(seed)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for block in range(blocks + 1):
        actions = rng.uniform(-1.0, 1.0, (block_steps, 7))
        for name, (reset, step) in contestants.items():
            reset()
            taken = seconds(step, actions)
            if block > 0:  # the first one compiles
                times[name].append(taken)
    return {name: np.array(taken) / block_steps for name, taken in times.items()}


def ratio(times: Mapping[str, np.ndarray], slow: str, fast: str, clock: int) -> float:
    """Median over the blocks of slow / fast; clock 0 is wall time, 1 is CPU time."""
    return round(statistics.median(times[slow][:, clock] / times[fast][:, clock]), 3)


def measure_state(suite: str, task: str | int, options: argparse.Namespace) -> dict[str, Any]:
    """Ours against LIBERO's own step, state only."""
    ours = LiberoEnv(suite, task, episode_length=FOREVER)
    ours.reset(seed=options.seed)
    stock = simulation.build_control_env(find_task(suite, task), renders=False, assets_folder=None)
    contestants = {"ours": (ours.reset, ours.step), "stock": (stock.env.reset, stock.step)}
    times = alternate(contestants, options.blocks, options.block_steps, options.seed)
    reset_ms = 1e3 * statistics.median(timed(ours.reset) for _ in range(5))
    ours.close()
    stock.close()
    wall, cpu = np.median(times["ours"], axis=0)
    return {
        "ratio": ratio(times, "stock", "ours", clock=0),
        "steps_per_s": round(1.0 / wall, 1),
        "fast_ms_per_step": round(1e3 * wall, 3),
        "fast_cpu_ms_per_step": round(1e3 * cpu, 3),
        "stock_ms_per_step": round(1e3 * float(np.median(times["stock"][:, 0])), 3),
        "reset_ms": round(reset_ms, 2),
    }


def measure_images(suite: str, task: int, options: argparse.Namespace) -> dict[str, Any]:
    """Ours with fast and with reference rendering against LeRobot's environment."""
    bootstrap.enable_rendering()
    bootstrap.use_assets(assets.resolve_assets(suite))
    import lerobot.envs.libero as lerobot

    theirs = lerobot.LiberoEnv(
        lerobot._get_suite(suite),
        task,
        suite,
        obs_type="pixels_agent_pos",
        observation_width=IMAGE_SIZE,
        observation_height=IMAGE_SIZE,
    )
    theirs.reset(seed=options.seed)
    # one long episode each: LeRobot's resets take a second
    contestants: dict[str, Any] = {"lerobot": (lambda: None, theirs.step)}
    ours = {}
    for rendering in ("fast", "reference"):
        ours[rendering] = env = LiberoEnv(
            suite,
            task,
            cameras=("image", "image2"),
            image_size=IMAGE_SIZE,
            episode_length=FOREVER,
            rendering=rendering,
        )
        env.reset(seed=options.seed, options={"init_state_id": 0})
        contestants[rendering] = (lambda: None, env.step)
    times = alternate(contestants, options.blocks, options.image_block_steps, options.seed)
    theirs.close()
    for env in ours.values():
        env.close()
    return {
        "libero_image_vs_lerobot": ratio(times, "lerobot", "fast", clock=1),
        "libero_image_vs_lerobot_wall": ratio(times, "lerobot", "fast", clock=0),
        "libero_image_reference_vs_lerobot": ratio(times, "lerobot", "reference", clock=1),
        **{
            f"libero_image_{name}_steps_per_cpu_s": round(1.0 / float(np.median(t[:, 1])), 2)
            for name, t in times.items()
        },
    }


def measure_libero(options: argparse.Namespace) -> dict[str, Any]:
    """The two comparisons on LIBERO; null where assets or a GL library are missing."""
    suite, task = options.libero_suite, options.libero_task
    result: dict[str, Any] = {"libero_image_vs_lerobot": None, "libero_state_vs_stock": None}
    try:
        assets.resolve_assets(suite)
        state = measure_state(suite, task, options)
        result["libero_state_vs_stock"] = state.pop("ratio")
        result["libero_task"] = find_task(suite, task).name
        result |= {f"libero_state_{key}": value for key, value in state.items()}
        result |= measure_images(suite, task, options)
    except (assets.AssetsIncompleteError, bootstrap.RenderingUnavailableError) as error:
        result["libero_skipped"] = str(error)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default=DEFAULT_TASK)
    parser.add_argument("--libero-suite", default="libero_spatial")
    parser.add_argument("--libero-task", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--block-steps", type=int, default=60)
    parser.add_argument("--image-block-steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args()
    tabletop = measure_state(SUITE, options.task, options)
    result = {
        "benchmark": "env",
        "task": options.task,
        "fast_over_stock": tabletop.pop("ratio"),
        **tabletop,
        **measure_libero(options),
        "bars": BARS,
        "blocks": options.blocks,
        "block_steps": options.block_steps,
        "seed": options.seed,
    }
    missed = [name for name, bar in BARS.items() if (result[name] or bar) < bar]
    for name, bar in BARS.items():
        verdict = "not measured" if result[name] is None else "MISSED" if name in missed else "met"
        print(f"{name}: {result[name]} (bar {bar}: {verdict})")
    print(f"{options.task}: {result['steps_per_s']} steps/s, reset {result['reset_ms']} ms")
    if "libero_skipped" in result:
        print(f"LIBERO's suites were left out: {result['libero_skipped']}")
    if options.json:
        print(json.dumps(result))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
