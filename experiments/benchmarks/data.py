"""The data plane: exactness, resumption, and speed beside LeRobot's own writing and reading.

Conversion: the same ALOHA files, three cameras of 480 x 640, the same mode, by `pld-ray convert` in
two processes and by a plain loop of `add_frame` and `save_episode`; imports are not counted, the
start of our processes is. Resumption: conversions killed by SIGKILL at random moments until there
were 20 kills, each dataset compared byte by byte with an undisturbed one. Windows: B=128, H=10,
states, from a `ChunkRing` and from a `LeRobotDataset` with `delta_timestamps` behind a DataLoader,
in whichever of 0 and 2 worker processes is faster. Dumping: processor time of the thread that
writes a run's episodes, for each environment step of states alone and of two cameras of 128 x 128.

    python experiments/benchmarks/data.py --json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import cv2
import h5py
import numpy as np

from pld_ray.data.aloha_file import MOTORS, Layout
from pld_ray.data.aloha_part import Settings
from pld_ray.data.conversion import convert
from pld_ray.data.dataset import Dataset

CAMERAS = ("cam_high", "cam_left_wrist", "cam_right_wrist")
HIGH = "observation.images.cam_high"
KILLS, BATCH, HORIZON = 20, 128, 10
PARTS = ("exact", "resume", "convert", "stats", "windows", "dump")
BARS = {
    "raw_exact": ("==", 1.0),
    "jpeg_psnr_db": (">=", 30.0),
    "red_stays_red": ("==", 1.0),
    "resume_identical": ("==", 1.0),
    "convert_vs_lerobot": (">=", 1.5),
    "norm_stats_max_rel_err": ("<=", 1e-6),
    "norm_stats_quantile_bins": ("<=", 1.0),
    "window_vs_lerobot": (">=", 20.0),
}


def picture(step: int, height: int, width: int, shift: int = 0) -> np.ndarray:
    """A room with a red object that moves, and the noise of a camera."""
    rng = np.random.default_rng([step, shift])
    y, x = np.mgrid[:height, :width]
    waves = [70 + 40 * np.sin(x / 53 + shift), 90 + 40 * np.cos(y / 41), 110 + 30 * np.sin(x / 29)]
    image = np.stack(waves, -1) + rng.normal(0, 3, (height, width, 3))
    left = (3 * step) % (width - width // 5)
    image[height // 3 : 2 * height // 3, left : left + width // 5] = (225, 25, 25)
    return image.clip(0, 255).astype(np.uint8)


def record(
    path: pathlib.Path, length: int, size: tuple[int, int] | None, jpeg: bool, bgr: bool = False
) -> None:
    """One ALOHA file; no size: no cameras."""
    rng = np.random.default_rng(sum(path.name.encode()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        walk = rng.normal(0, 0.01, (2, length, 14)).cumsum(1)
        file["observations/qpos"], file["action"] = walk[0], walk[0] + walk[1]
        for shift, camera in enumerate(CAMERAS if size else ()):
            images = np.stack([picture(step, *size, shift) for step in range(length)])
            images = images[..., ::-1] if bgr else images
            if jpeg:
                files = [cv2.imencode(".jpg", image[..., ::-1])[1].ravel() for image in images]
                longest = max(map(len, files))
                images = np.stack([np.pad(data, (0, longest - len(data))) for data in files])
            file[f"observations/images/{camera}"] = images


def settings(**kwargs: Any) -> Settings:
    return Settings("bench/aloha", "fold the box", **kwargs)


def decibels(image: np.ndarray, original: np.ndarray) -> float:
    error = np.square(image.astype(float) - original).mean()
    return 99.0 if error == 0 else 10 * np.log10(255**2 / error)


# --- exactness -----------------------------------------------------------------------------------


def exactness(folder: pathlib.Path) -> dict[str, float]:
    """Raw arrays come back equal, JPEG nearly so, and red is red in every combination."""
    size, exact, psnr, red = (120, 160), True, [], True
    for jpeg in (False, True):
        for color in ("auto", "rgb", "bgr"):
            name = f"{'jpeg' if jpeg else 'raw'}-{color}"
            source = folder / name / "score_5/episode_0.hdf5"
            record(source, 10, size, jpeg, bgr=color == "bgr")
            convert(folder / name, folder / f"{name}-out", settings(color=color), Layout(), 1)
            dataset = Dataset(folder / f"{name}-out")
            images = dataset.images(0, HIGH, range(10))
            originals = [picture(step, *size) for step in range(10)]
            for step, image in enumerate(images):
                patch = image[50:70, 3 * step + 8 : 3 * step + 24].reshape(-1, 3).mean(0)
                red &= bool(patch[0] > 180 and patch[1:].max() < 80)
            if jpeg:
                psnr += [decibels(*pair) for pair in zip(images, originals, strict=True)]
                continue
            columns = dataset.columns(["observation.state", "action"])
            with h5py.File(source) as file:
                keys = ("observations/qpos", "action")
                recorded = [file[key][:].astype(np.float32) for key in keys]
            exact &= all(map(np.array_equal, columns.values(), recorded))
            exact &= all(map(np.array_equal, images, originals))
    return {"raw_exact": float(exact), "jpeg_psnr_db": min(psnr), "red_stays_red": float(red)}


# --- resumption ----------------------------------------------------------------------------------


def contents(root: pathlib.Path) -> dict[str, bytes]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in files
        if "progress" not in path.name
    }


def convert_here(folder: pathlib.Path, root: pathlib.Path) -> None:
    convert(folder, root, settings(), Layout(), 2)


def resumption(folder: pathlib.Path) -> dict[str, float]:
    """Kill conversions at random moments."""
    for k in range(24):
        record(folder / f"in/score_{5 if k % 2 else 1}/episode_{k}.hdf5", 12, (120, 160), False)
    context = multiprocessing.get_context("fork")

    def start(root: str) -> Any:
        process = context.Process(target=convert_here, args=(folder / "in", folder / root))
        process.start()
        return process

    for root in ("warm", "whole"):
        begun = time.perf_counter()
        start(root).join()
    whole_s, whole = time.perf_counter() - begun, contents(folder / "whole")
    draw, kills, finished, same = random.Random(0), 0, 0, True
    while kills < KILLS or finished == 0:
        process = start("out")
        process.join(draw.uniform(0.0, whole_s) if kills < KILLS else None)
        if process.is_alive():
            process.kill()
            kills += 1
        process.join()
        if process.exitcode not in (0, -9):
            raise RuntimeError(f"a conversion ended with {process.exitcode}")
        if process.exitcode == 0:
            same &= contents(folder / "out") == whole
            shutil.rmtree(folder / "out")
            finished += 1
    return {"resume_identical": float(same), "resume_kills": kills, "resume_finished": finished}


# --- conversion beside LeRobot -------------------------------------------------------------------


def lerobot_loop(folder: pathlib.Path, root: pathlib.Path, mode: str) -> None:
    """What a converter is made of without this project."""
    from lerobot.datasets import LeRobotDataset

    files = sorted(folder.glob("*/*.hdf5"))
    with h5py.File(files[0]) as file:
        height, width = decode(file[f"observations/images/{CAMERAS[0]}"][0]).shape[:2]
    motors = {"dtype": "float32", "shape": (14,), "names": MOTORS}
    number = {"shape": (1,), "names": None}
    features = {
        "observation.state": motors,
        "action": motors,
        "next.reward": {"dtype": "float32", **number},
        **{name: {"dtype": "bool", **number} for name in ("next.done", "next.success", "start")},
    }
    names = ["height", "width", "channels"]
    for camera in CAMERAS:
        image = {"dtype": mode, "shape": (height, width, 3), "names": names}
        features[f"observation.images.{camera}"] = image
    dataset = LeRobotDataset.create(
        "bench/aloha", 50, features, root=root, use_videos=mode == "video"
    )
    for path in files:
        with h5py.File(path) as file:
            state = file["observations/qpos"][:].astype(np.float32)
            action = file["action"][:].astype(np.float32)
            cameras = {name: file[f"observations/images/{name}"][:] for name in CAMERAS}
        for t in range(len(action)):
            last = np.array([t == len(action) - 1])
            images = {f"observation.images.{c}": decode(rows[t]) for c, rows in cameras.items()}
            frame = {
                "observation.state": state[t],
                "action": action[t],
                "next.reward": last.astype(np.float32),
                "next.done": last,
                "next.success": last,
                "start": np.array([True]),
                "task": "fold the box",
            }
            dataset.add_frame(frame | images)
        dataset.save_episode()
    dataset.finalize()


def decode(row: np.ndarray) -> np.ndarray:
    """An image as it lies in a file -> RGB."""
    return row if row.ndim == 3 else cv2.imdecode(row, cv2.IMREAD_COLOR)[..., ::-1]


def conversion(folder: pathlib.Path, episodes: int, length: int) -> dict[str, float]:
    """Frames per second, ours and the loop's, of raw and JPEG files."""
    import lerobot.datasets  # noqa: F401  # its import is not what is compared

    figures = {}
    for source, jpeg, mode in (
        ("raw", False, "image"),
        ("jpeg", True, "image"),
        ("video", False, "video"),
    ):
        files = folder / f"{source}-in"
        for k in range(episodes):
            record(files / f"score_5/episode_{k}.hdf5", length, (480, 640), jpeg)
        begun = time.perf_counter()
        convert(files, folder / f"{source}-ours", settings(mode=mode), Layout(), 2)
        ours = time.perf_counter() - begun
        begun = time.perf_counter()
        lerobot_loop(files, folder / f"{source}-lerobot", mode)
        theirs = time.perf_counter() - begun
        figures[f"convert_{source}_frames_per_s"] = episodes * length / ours
        figures[f"lerobot_{source}_frames_per_s"] = episodes * length / theirs
        figures[f"convert_{source}_vs_lerobot"] = theirs / ours
        for side in ("ours", "lerobot"):
            size = sum(p.stat().st_size for p in (folder / f"{source}-{side}").rglob("*.[pm]*"))
            figures[f"{source}_{side}_mb"] = size / 1e6
    figures["convert_vs_lerobot"] = figures["convert_raw_vs_lerobot"]
    return figures


# --- statistics and windows ----------------------------------------------------------------------


def states_only(folder: pathlib.Path) -> Dataset:
    """40 episodes of 500 steps without cameras."""
    for k in range(40):
        record(folder / f"in/score_{5 if k % 4 else 1}/episode_{k}.hdf5", 500, None, False)
    convert(folder / "in", folder / "out", settings(), Layout(cameras={}), 2)
    return Dataset(folder / "out")


def norm_stats(dataset: Dataset) -> dict[str, float]:
    """Largest relative error of mean and std, and of quantiles in bins, against NumPy."""
    from pld_ray.data.norm_stats import compute_norm_stats, parse_delta

    worst, bins = 0.0, 0.0
    for delta in ([], parse_delta("6,-1,6,-1")):
        found = compute_norm_stats(dataset, HORIZON, delta)
        columns = dataset.columns(["observation.state", "action"])
        state, action = (values.astype(np.float64) for values in columns.values())
        rows = []
        for first, length in zip(dataset.first_frames, dataset.lengths, strict=True):
            for k in range(HORIZON):
                window = action[first + k : first + length].copy()
                window[:, delta] -= state[first : first + length - k, delta]
                rows.append(window)
        for key, whole in (("state", state), ("actions", np.concatenate(rows))):
            of = found[key]
            for ours, exact in ((of.mean, whole.mean(0)), (of.std, whole.std(0))):
                worst = max(worst, float(np.abs(ours / exact - 1).max()))
            width = np.ptp(whole, 0) / 5000
            for ours, share in ((of.q01, 0.01), (of.q99, 0.99)):
                exact = np.quantile(whole, share, axis=0, method="inverted_cdf")
                bins = max(bins, float((np.abs(ours - exact) / width).max()))
    return {"norm_stats_max_rel_err": worst, "norm_stats_quantile_bins": bins}


def per_second(draw: Callable[[], object], seconds: float = 2.0) -> float:
    """Calls per second."""
    draw()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        draw()
        calls += 1
    return calls / (time.perf_counter() - begun)


def windows(dataset: Dataset, rounds: int) -> dict[str, float]:
    """Batches of windows per second, turn by turn."""
    import torch
    from lerobot.datasets import LeRobotDataset

    from pld_ray.data.windows import DatasetWindows

    torch.set_num_threads(1)
    ours = DatasetWindows(dataset)
    ring = ours.ring
    fps = dataset.fps
    steps = {
        "action": [k / fps for k in range(HORIZON)],
        "next.reward": [k / fps for k in range(HORIZON)],
        "observation.state": [0.0, HORIZON / fps],
    }
    theirs = LeRobotDataset("bench/aloha", root=dataset.root, delta_timestamps=steps)

    def loader(workers: int) -> Callable[[], object]:
        batches = torch.utils.data.DataLoader(
            theirs, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        stream = iter(batches)
        return lambda: next(stream)

    def from_ring() -> object:
        return ring.sample_windows(BATCH, HORIZON, 0.99)

    def from_dataset() -> object:
        return ours.sample(BATCH, HORIZON, 0.99)

    contestants = {"ring": from_ring, "dataset": from_dataset}
    speeds: dict[str, list[float]] = {name: [] for name in (*contestants, "lerobot")}
    for _ in range(rounds):
        for name, draw in contestants.items():
            speeds[name].append(per_second(draw))
        speeds["lerobot"].append(max(per_second(loader(workers), 4.0) for workers in (0, 2)))
    median = {name: statistics.median(values) for name, values in speeds.items()}
    figures = {f"window_{name}_batches_per_s": value for name, value in median.items()}
    figures["window_vs_lerobot"] = median["ring"] / median["lerobot"]
    figures["window_dataset_vs_lerobot"] = median["dataset"] / median["lerobot"]
    return figures


def dumping(folder: pathlib.Path, num_episodes: int = 10, length: int = 150) -> dict[str, float]:
    """Milliseconds of this thread's processor time for each step that is dumped."""
    from pld_ray.data.dataset_series import DatasetSeries
    from pld_ray.data.episode_writer import Recording

    rng, rows = np.random.default_rng(0), length + 1
    widths = {"observation.state": 8, "observation.environment_state": 24}
    widths |= {"base_action": 7, "action": 7}
    columns = {name: np.float32(rng.normal(size=(rows, width))) for name, width in widths.items()}
    columns |= {name: np.zeros(rows, np.float32) for name in ("reward", "residual_scale")}
    marks = ("terminated", "truncated", "success", "intervened")
    columns |= {name: np.zeros(rows, bool) for name in marks}
    images = np.stack([picture(step, 128, 128) for step in range(rows)])
    cameras = {f"observation.images.{name}": images for name in ("image", "image2")}
    figures = {}
    cv2.setNumThreads(1)
    for kind, episode in (("states", columns), ("cameras", columns | cameras)):
        series = DatasetSeries(folder / kind, Recording(task="place", fps=20))
        series.add(episode)  # imports
        begun = time.thread_time()
        for _ in range(num_episodes):
            series.add(episode)
        series.close(1)
        spent = time.thread_time() - begun
        figures[f"dump_{kind}_cpu_ms_per_step"] = 1e3 * spent / (num_episodes * length)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=6, help="of the comparison's recordings")
    parser.add_argument("--length", type=int, default=100, help="steps of each")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the window comparison")
    parser.add_argument("--parts", default=",".join(PARTS), help="which to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    parts, figures = args.parts.split(","), {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if "exact" in parts:
            figures |= exactness(folder / "exact")
        if "resume" in parts:
            figures |= resumption(folder / "resume")
        if "convert" in parts:
            figures |= conversion(folder / "convert", args.episodes, args.length)
        dataset = states_only(folder / "states") if {"stats", "windows"} & set(parts) else None
        if dataset and "stats" in parts:
            figures |= norm_stats(dataset)
        if dataset and "windows" in parts:
            figures |= windows(dataset, args.rounds)
        if "dump" in parts:
            figures |= dumping(folder / "dump")
    for key, value in figures.items():
        sign, bar = BARS.get(key, ("", ""))
        print(f"{key:32s} {value:12.6g}  {sign} {bar}".rstrip())
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
