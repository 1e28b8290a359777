"""HIL-SERL's pickled demonstrations and buffers as a LeRobotDataset, without running their code.

A pickle is a program. This reader lets it call what builds NumPy arrays and plain containers; a
file that asks for anything else is refused by the name of what it would have called.
"""

from __future__ import annotations

import io
import itertools
import pathlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pld_ray.columns import IMAGE_PREFIX, SUCCESS, VECTOR_KEYS, Columns
from pld_ray.data.episode_writer import EpisodeWriter, Recording, check_goes_on
from pld_ray.data.errors import DataError

CORES = ("numpy.core", "numpy._core")
ARRAYS = {
    *((f"{core}.multiarray", name) for core in CORES for name in ("_reconstruct", "scalar")),
    *((f"{core}.numeric", "_frombuffer") for core in CORES),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}
"""What a pickle may call: (module, name)."""
NEEDED = ("observations", "next_observations", "actions", "rewards", "dones")
NUMBERS = ("rewards", "dones", "masks")
"""One of each in a transition, the last where there is one."""
INTERVENED = "intervene_action"
"""In a transition's `infos`: the action was a person's."""


def convert_hilserl(
    source: pathlib.Path,
    root: pathlib.Path,
    fps: int,
    task: str,
    on_episode: Callable[[], None] = lambda: None,
) -> EpisodeWriter:
    """Make a dataset of the pickles of a folder, or of one file; killed, the same call goes on.

    Args:
        source: `*.pkl`, in the order of the numbers in their names.
        root: of the dataset, new.
        fps: environment steps per second, which the files do not tell.
        task: what is done, in words.
        on_episode: called after each one.

    Raises:
        DataError: a file cannot be read, there is no transition, or the folder holds something
            else or is in use.
    """
    files = files_of(source)
    about = {"source": [[file.name, file.stat().st_size] for file in files]}
    recording = Recording(task=task, fps=fps, about=about)
    check_goes_on(root, recording)  # before a file, which may be large, is read
    episodes = episodes_of_files(files)
    first = next(episodes, None)  # what cannot be read begins no dataset
    if first is None:
        raise DataError(f"{source} holds no transition: give what HIL-SERL recorded")
    with EpisodeWriter(root, recording) as writer:
        for number, (file, columns) in enumerate(itertools.chain([first], episodes)):
            if number >= len(writer):
                writer.add(columns, {"file": file.name})
                on_episode()
        writer.finish()
    return writer


def files_of(source: pathlib.Path) -> list[pathlib.Path]:
    """The pickles of a folder, in the order of the numbers in their names, or the one file.

    Raises:
        DataError: there is none.
    """
    if not source.exists():
        raise DataError(
            f"{source} is not there: give the folder that HIL-SERL wrote, or one *.pkl of it"
        )
    files = sorted(source.glob("*.pkl"), key=by_number) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source} holds no *.pkl: give the folder that HIL-SERL wrote")
    return files


def episodes_of_files(files: Sequence[pathlib.Path]) -> Iterator[tuple[pathlib.Path, Columns]]:
    """All episodes with their files, which are read one at a time."""
    for file in files:
        for columns in episodes_of_transitions(read_transitions(file), file):
            yield file, columns


def by_number(path: pathlib.Path) -> tuple[int, str]:
    """`transitions_900.pkl` before `transitions_1000.pkl`."""
    digits = "".join(c for c in path.stem if c.isdigit())
    return int(digits or 0), path.name


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"it calls {module}.{name}")
        return super().find_class(module, name)


def read_transitions(path: pathlib.Path) -> list[dict[str, Any]]:
    """The transitions of a file that HIL-SERL wrote; none where nothing came since the last one.

    Raises:
        DataError: it is no such file, calls something that builds no array, or a transition lacks
            something, is not finite or of no shape that is known.
    """
    try:
        found = _Reader(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is no pickle of arrays alone ({error}), and that was not run: save the "
            "transitions as plain dictionaries of NumPy arrays"
        ) from None
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise DataError(f"{path} holds no list of transitions: give what HIL-SERL records")
    for number, row in enumerate(found):
        if wrong := wrong_with(row):
            raise DataError(f"{path}, transition {number}: {wrong}; mend it, or leave the file out")
    return found


def wrong_with(row: Mapping[str, Any]) -> str | None:
    """What is missing in a transition or of no use, None if all is well."""
    if missing := [name for name in NEEDED if name not in row]:
        return f"may not lack {', '.join(missing)}"
    for name in ("observations", "next_observations"):
        if not isinstance(row[name], Mapping) or not row[name]:
            return f"{name} are no dictionary of arrays, or an empty one"
        try:
            observation_of(row[name])
        except ValueError as error:
            return str(error)
    if not isinstance(row.get("infos") or {}, Mapping):
        return "infos are no dictionary"
    for name in ("actions", *(name for name in NUMBERS if name in row)):
        try:
            values = np.asarray(row[name], np.float32)
        except (TypeError, ValueError, OverflowError):
            return f"{name} are no numbers"
        if not np.isfinite(values).all():
            return f"{name} are not finite"
        one = name in NUMBERS
        fits = values.size == 1 if one else values.size and values.ndim < 2
        if not fits:
            need = "one number" if one else "a vector"
            return f"{name} have shape {values.shape}, need {need}"
    return None


def episodes_of_transitions(
    transitions: Sequence[Mapping[str, Any]], where: pathlib.Path
) -> Iterator[Columns]:
    """Episodes [L + 1, ...]: cut where `dones` is set; an open end is cut there.

    An episode is cut, too, where the next transition does not begin with what was seen last: a
    `demo_buffer` holds only those in which a person acted.

    `masks` of 0 means that the task was over; without it, a done did. An episode is a success if
    its last reward is above 0. A leading axis of one observation (frame stacks) is dropped.

    Args:
        transitions: in the order in which they were made, as `read_transitions` gives them.
        where: the file, for messages.

    Raises:
        DataError: transitions of different shapes.
    """
    begin = 0
    for end, transition in enumerate(transitions, start=1):
        over = bool(transition["dones"]) or end == len(transitions)
        if over or not goes_on(transition, transitions[end]):
            yield _episode(transitions[begin:end], where)
            begin = end


def goes_on(transition: Mapping[str, Any], following: Mapping[str, Any]) -> bool:
    """Whether a transition begins with what was seen at the end of the one before."""
    seen, begun = transition["next_observations"], following["observations"]
    return seen.keys() == begun.keys() and all(same(seen[k], begun[k]) for k in seen)


def same(one: Any, other: Any) -> bool:
    """Whether two observations are the same; NaN is where it is NaN again."""
    try:
        return bool(np.array_equal(one, other, equal_nan=True))
    except TypeError:  # of objects, of which NumPy does not know whether they are numbers
        return bool(np.array_equal(one, other))


def _episode(rows: Sequence[Mapping[str, Any]], where: pathlib.Path) -> Columns:
    seen = [observation_of(row["observations"]) for row in rows]
    seen.append(observation_of(rows[-1]["next_observations"]))
    actions = [np.asarray(row["actions"], np.float32) for row in rows]
    try:
        columns = {name: np.stack([row[name] for row in seen]) for name in seen[0]}
        columns["action"] = np.stack([*actions, np.zeros_like(actions[0])])
    except (ValueError, KeyError) as error:
        raise DataError(f"{where}: transitions of an episode differ ({error})") from None
    rewards = [float(row["rewards"]) for row in rows]
    columns["reward"] = np.array([*rewards, 0.0], np.float32)
    columns["residual_scale"] = np.zeros(len(rows) + 1, np.float32)
    infos = [row.get("infos") or {} for row in rows]
    columns["intervened"] = np.array([*(INTERVENED in info for info in infos), False])
    over = bool(rows[-1]["dones"]) and not float(rows[-1].get("masks", 0.0))
    flags = np.zeros((3, len(rows) + 1), bool)
    flags[:, -2] = over, not over, rewards[-1] > 0
    columns["terminated"], columns["truncated"], columns[SUCCESS] = flags
    return columns


def observation_of(entries: Mapping[str, Any]) -> Columns:
    """`state` as observation.state, images [H, W, 3] uint8 as observation.images.NAME.

    Raises:
        ValueError: stacked frames, or something that is neither vector nor image.
    """
    found: Columns = {}
    for name, value in entries.items():
        try:
            array = np.asarray(value)
            is_image = array.dtype == np.uint8
            array = array if is_image else array.astype(np.float32)
        except (TypeError, ValueError):
            raise ValueError(f"{name} of its observations holds no numbers") from None
        if array.ndim == (4 if is_image else 2):
            if len(array) != 1:
                raise ValueError(f"{name} stacks {len(array)} frames, need one")
            array = array[0]
        shows = is_image and array.ndim == 3 and array.shape[2] in (3, 4)
        if not array.size or not (shows or array.ndim < 2):
            raise ValueError(
                f"{name} has shape {array.shape}, need a vector or, of uint8, an image [H, W, 3]"
            )
        key = VECTOR_KEYS[0] if name == "state" else f"observation.{name}"
        found[f"{IMAGE_PREFIX}{name}" if is_image else key] = (
            array if is_image else np.atleast_1d(array)
        )
    return found
