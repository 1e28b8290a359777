"""ALOHA HDF5 files -> one LeRobotDataset: examined, converted in parallel, resumed, assembled.

While it goes on, `ROOT/.conversion/parts` holds what is done, one folder an episode, and
`ROOT/conversion_progress.json` says which. The dataset is put together at the end and moved into
place, so that a conversion which is killed at any moment goes on where it was.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pld_ray.data import lerobot_format as v3
from pld_ray.data.aloha_file import Layout
from pld_ray.data.aloha_part import PartJob, Settings, convert_episode
from pld_ray.data.assemble import assemble, move_into_place
from pld_ray.data.color_sample import write_color_sample
from pld_ray.data.conversion_plan import Source, examine, find_sources, make_features
from pld_ray.data.conversion_progress import Steps
from pld_ray.data.errors import BadEpisode, DataError
from pld_ray.data.parts import PARTIAL, read_description
from pld_ray.data.workers import WorkerDied, run_jobs
from pld_ray.files.lock import FolderLock

PROGRESS_FILE, WORK_FOLDER = "conversion_progress.json", ".conversion"
COLOR_SAMPLE = "color_sample.png"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class Outcome:
    """What a conversion came to.

    Attributes:
        num_episodes, num_frames: in the dataset.
        left_out: file or folder -> why it is not in there.
        was_finished: nothing was left to do.
    """

    num_episodes: int
    num_frames: int
    left_out: dict[str, str] = field(default_factory=dict)
    was_finished: bool = False


def convert(
    input_dir: pathlib.Path,
    root: pathlib.Path,
    settings: Settings,
    layout: Layout,
    num_workers: int | None = None,
    skip_bad: bool = False,
    steps: Steps | None = None,
) -> Outcome:
    """Convert a folder of score folders, or go on with it.

    Args:
        input_dir: `FOLDER/*.hdf5` for each folder of `settings.scores`.
        root: of the dataset; new, or of this conversion when it was stopped.
        settings: what is made of the files.
        layout: where a file's arrays lie.
        num_workers: processes; None is one for each processor.
        skip_bad: leave out what cannot be converted in place of stopping.
        steps: is told how far it is.

    Raises:
        DataError: the folder, a file, the settings or the target cannot be used.
    """
    steps = steps or Steps()
    sources, left_out = find_sources(input_dir, settings, skip_bad)
    state = Progress(root, input_dir, settings, layout)
    finished = state.begin(sources)
    if finished is not None:
        return finished
    lock = FolderLock(root / WORK_FOLDER)
    owner = lock.claim(alone=True)
    if owner is not None:
        raise DataError(
            f"{root} is in use by {owner}: another conversion writes there; wait for it"
        )
    try:
        state.write([], left_out)
        with steps.phase("looking into files", len(sources)) as advance:
            shapes, reasons = examine(sources, layout, lambda: advance(1))
        refuse_or_note(reasons, left_out, skip_bad, len(sources))
        good = [source for source in sources if source.name in shapes]
        features = make_features([shapes[s.name] for s in good], layout, settings)
        write_color_sample(good[0].path, layout, settings.color, root / COLOR_SAMPLE)
        steps.note(f"colours as they are converted: {root / COLOR_SAMPLE}")
        jobs = {s.name: job_of(s, state.parts, settings, layout, features) for s in good}
        state.write(good, left_out)
        frames = {name: shapes[name].length for name in jobs}
        convert_files(jobs, frames, num_workers or os.cpu_count() or 1, skip_bad, left_out, steps)
        good = [source for source in good if source.name not in left_out]
        state.write(good, left_out)
        num_frames = sum(frames[source.name] for source in good)
        staged = state.work / "dataset"
        shutil.rmtree(staged, ignore_errors=True)
        with steps.phase("putting together", num_frames, "frames") as advance:
            parts = [state.parts / source.key for source in good]
            args = features, settings.fps, settings.task, layout.robot_type
            assemble(parts, staged, *args, on_episode=advance)
        state.write(good, left_out, "assembled")
        move_into_place(staged, root)
        state.write(good, left_out, "finished")
        shutil.rmtree(state.work)
        return Outcome(len(good), num_frames, left_out)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise disk_full(root, error) from None
    finally:
        lock.release()


def job_of(
    source: Source,
    parts: pathlib.Path,
    settings: Settings,
    layout: Layout,
    features: v3.Features,
) -> PartJob:
    """What a worker is told about a file."""
    part = parts / source.key
    return PartJob(source.name, source.path, part, source.value, settings, layout, features)


def convert_files(
    jobs: dict[str, PartJob],
    frames: dict[str, int],
    num_workers: int,
    skip_bad: bool,
    left_out: dict[str, str],
    steps: Steps,
) -> None:
    """Make the parts that are not there yet; what cannot be made joins `left_out`."""
    for job in jobs.values():
        for partial in job.part.parent.glob(".partial-*"):
            shutil.rmtree(partial, ignore_errors=True)
        break
    remove_outdated(jobs.values(), steps)
    missing = [job for job in jobs.values() if not job.part.exists()]
    done = sum(frames.values()) - sum(frames[job.name] for job in missing)
    if done:
        steps.note(f"{len(jobs) - len(missing)} of {len(jobs)} episodes were converted before")
    reasons: dict[str, str] = {}
    with steps.phase("converting", sum(frames.values()), "frames", done) as advance:
        for job, result in run_jobs(convert_episode, missing, num_workers):
            if isinstance(result, BadEpisode) and skip_bad:
                reasons[job.name] = str(result)
            elif isinstance(result, BadEpisode):
                raise DataError(f"{result}, or give --skip_bad; what is done is kept")
            elif isinstance(result, WorkerDied):
                raise DataError(
                    f"{job.name}: the process that converted it ended with {result.args[0]}, often "
                    "for lack of memory; give --workers=1 and run the same command again"
                )
            elif isinstance(result, Exception):
                raise result
            advance(frames[job.name])
    left_out.update(reasons)
    if len(reasons) == len(jobs):
        raise DataError(f"no episode can be converted; the first: {next(iter(reasons.values()))}")


def remove_outdated(jobs: Iterable[PartJob], steps: Steps) -> None:
    """Remove the parts that have other columns than the dataset is to have.

    Whether there are velocities and efforts depends on all files: one that was added or taken away
    since a part was written changes what belongs into it.
    """
    outdated = []
    for job in jobs:
        if job.part.exists():
            stored = read_description(job.part)["stats"].keys()
            if stored - v3.INDEX_FEATURES.keys() != job.features.keys() - v3.INDEX_FEATURES.keys():
                outdated.append(job.part)
    for part in outdated:
        # a part that exists counts as whole, so it goes by its name first
        shutil.rmtree(part.rename(part.with_name(f"{PARTIAL}{part.name}")))
    if outdated:
        count = f"{len(outdated)} episode{'s' * (len(outdated) != 1)}"
        steps.note(f"{count} to be converted again: other files, other columns")


def refuse_or_note(
    reasons: dict[str, str], left_out: dict[str, str], skip_bad: bool, num_files: int
) -> None:
    """Stop at what cannot be converted, or remember it."""
    if reasons and len(reasons) == num_files:
        raise DataError(f"no episode can be converted; the first: {next(iter(reasons.values()))}")
    if reasons and not skip_bad:
        listed = "\n  ".join(reasons.values())
        raise DataError(
            f"{len(reasons)} of {num_files} episodes cannot be converted; mend them, or leave them "
            f"out with --skip_bad:\n  {listed}"
        )
    left_out.update(reasons)


def disk_full(root: pathlib.Path, error: OSError) -> DataError:
    """The one sentence."""
    return DataError(
        f"{root}: {os.strerror(error.errno or errno.ENOSPC).lower()}; make room for twice the size "
        "of the dataset and run the same command again, what is done is kept"
    )


class Progress:
    """`conversion_progress.json`: what is converted, how far it is, and what was left out."""

    def __init__(
        self, root: pathlib.Path, input_dir: pathlib.Path, settings: Settings, layout: Layout
    ) -> None:
        self.root, self.work = root, root / WORK_FOLDER
        self.parts = self.work / "parts"
        self.settings = {
            **dataclasses.asdict(settings),
            "layout": dataclasses.asdict(layout),
            "input_dir": str(input_dir.resolve()),
        }

    def begin(self, sources: Sequence[Source]) -> Outcome | None:
        """Make sure that the target is new or this conversion's own; its outcome if it is done."""
        path = self.root / PROGRESS_FILE
        try:
            saved = json.loads(path.read_text())
        except FileNotFoundError:
            self._refuse_others()
            self.parts.mkdir(parents=True, exist_ok=True)
            return None
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); delete {self.root}") from None
        for name, value in self.settings.items():
            if saved["settings"].get(name) != value:
                raise DataError(
                    f"{self.root} was begun with {name}={saved['settings'].get(name)!r} and is now "
                    f"asked for {value!r}; give another --root, or the former value"
                )
        if saved["state"] != "finished":
            self.parts.mkdir(parents=True, exist_ok=True)
            return None
        shutil.rmtree(self.work, ignore_errors=True)
        known = {(f["folder"], f["file"], f["size"]) for f in saved["files"]}
        known |= {(None, name, None) for name in saved["left_out"]}
        for source in sources:
            identity = (source.folder, source.path.name, source.size)
            if identity not in known and (None, source.name, None) not in known:
                raise DataError(
                    f"{self.root} holds a finished dataset already, without {source.name} as it is "
                    "now; give another --root"
                )
        num_frames = json.loads((self.root / v3.INFO_PATH).read_text())["total_frames"]
        return Outcome(len(saved["files"]), num_frames, saved["left_out"], was_finished=True)

    def _refuse_others(self) -> None:
        if (self.root / v3.INFO_PATH).exists():
            raise DataError(f"{self.root} holds a dataset already; give another --root")
        own = {WORK_FOLDER, f".{PROGRESS_FILE}.partial"}
        if self.root.exists() and (not self.root.is_dir() or set(os.listdir(self.root)) - own):
            raise DataError(f"{self.root} holds something else already; give a new folder, --root")

    def write(
        self, files: Sequence[Source], left_out: dict[str, str], state: str = "converting"
    ) -> None:
        """Save how far it is."""
        entries: list[dict[str, Any]] = [
            {"folder": s.folder, "file": s.path.name, "size": s.size, "part": s.key} for s in files
        ]
        progress = {
            "state": state,
            "settings": self.settings,
            "files": entries,
            "left_out": left_out,
        }
        v3.write_json(self.root / PROGRESS_FILE, progress)
