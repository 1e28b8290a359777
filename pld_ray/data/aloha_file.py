"""One ALOHA episode in HDF5, checked before anything of it is used."""

from __future__ import annotations

import dataclasses
import pathlib
from dataclasses import dataclass, field

import h5py
import numpy as np

from pld_ray.data.aloha_images import H5Images
from pld_ray.data.errors import BadEpisode, DataError
from pld_ray.files.yaml_file import YamlError, read_yaml

ARM = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
MOTORS = [f"{side}_{joint}" for side in ("left", "right") for joint in ARM]
"""Of ALOHA's 14 columns: the left arm comes first."""


@dataclass
class Layout:
    """Where an episode's arrays lie; the fields are the keys of a mapping file."""

    state: str = "/observations/qpos"
    """[T, D]."""
    action: str = "/action"
    """[T, A]."""
    velocity: str | None = "/observations/qvel"
    """[T, D], kept if every episode has it."""
    effort: str | None = "/observations/effort"
    """[T, D], kept if every episode has it."""
    cameras: dict[str, str] = field(
        default_factory=lambda: {
            name: f"/observations/images/{name}"
            for name in ("cam_high", "cam_left_wrist", "cam_right_wrist")
        }
    )
    """Name in the dataset -> array in the file."""
    motors: list[str] = field(default_factory=lambda: list(MOTORS))
    """Names of the columns of state and action, in the dataset's order."""
    columns: list[int] | None = None
    """Columns of the file's arrays that are kept, in the dataset's order; None keeps all."""
    robot_type: str = "aloha"
    """For `info.json`."""


def read_layout(path: str | None) -> Layout:
    """A mapping file (YAML), or ALOHA's own names without one.

    Raises:
        DataError: the file cannot be read, or a key is unknown or has the wrong type.
    """
    if path is None:
        return Layout()
    try:
        entries = read_yaml(path)
    except YamlError as error:
        raise DataError(f"--mapping={error}; give a YAML file") from None
    known = {f.name: f for f in dataclasses.fields(Layout)}
    unknown = sorted(map(str, set(entries) - set(known)))
    if unknown or not entries:
        raise DataError(f"--mapping={path}: unknown {unknown}; its keys are {', '.join(known)}")
    layout = Layout(**entries)
    texts = [layout.state, layout.action, layout.robot_type]
    texts += [name for name in (layout.velocity, layout.effort) if name is not None]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"--mapping={path}: state, action, velocity and effort are paths in a file")
    if not isinstance(layout.cameras, dict) or not all(
        isinstance(text, str) for pair in layout.cameras.items() for text in pair
    ):
        raise DataError(f"--mapping={path}: cameras must map a camera's name to its path in a file")
    if not isinstance(layout.motors, list) or len(set(map(str, layout.motors))) < len(
        layout.motors
    ):
        raise DataError(f"--mapping={path}: motors must be a list of different names")
    if layout.columns is not None and not (
        isinstance(layout.columns, list) and all(type(column) is int for column in layout.columns)
    ):
        raise DataError(
            f"--mapping={path}: columns must be a list of whole numbers, as in [0, 1, 2], got "
            f"{layout.columns!r}"
        )
    if layout.columns is not None and len(layout.columns) != len(layout.motors):
        raise DataError(
            f"--mapping={path}: columns names {len(layout.columns)} columns and motors "
            f"{len(layout.motors)}; each column needs one name"
        )
    return layout


class AlohaEpisode:
    """An open file whose arrays agree with each other.

    Args:
        path: of the HDF5 file.
        layout: where its arrays lie.
        name: folder/file, for messages.

    Attributes:
        state, action: [T, D] float64.
        others: `velocity` and `effort` where they exist.
        start: steps at which a chunk of actions began, [T] bool.
        chunked: whether the file has images for some steps only.

    Raises:
        BadEpisode: anything is missing, damaged or in disagreement.
    """

    def __init__(self, path: pathlib.Path, layout: Layout, name: str) -> None:
        self.name, self.layout = name, layout
        try:
            self.file = h5py.File(path, "r")
        except OSError as error:
            reason = "is cut short" if "truncated" in str(error) else "is no readable HDF5 file"
            raise BadEpisode(f"{name} {reason} ({error}); copy or record it again") from None
        try:
            self._check()
        except OSError as error:
            self.close()
            raise BadEpisode(f"{name} is damaged ({error}); copy or record it again") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> AlohaEpisode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """T, steps."""
        return len(self.action)

    def _check(self) -> None:
        self.action = self._numbers(self.layout.action)
        self.state = self._numbers(self.layout.state)
        if len(self.action) == 0:
            raise BadEpisode(f"{self.name} has no steps; leave it out")
        self.others = {
            kind: self._numbers(key)
            for kind, key in (("velocity", self.layout.velocity), ("effort", self.layout.effort))
            if key is not None and key in self.file
        }
        arrays = {self.layout.state: self.state, self.layout.action: self.action}
        for kind, values in self.others.items():
            arrays[getattr(self.layout, kind)] = values
        for key, values in arrays.items():
            if len(values) != len(self.action):
                raise BadEpisode(
                    f"{self.name}: {key} has {len(values)} steps but {self.layout.action} has "
                    f"{len(self.action)}; cut both to the steps that belong together"
                )
            if not np.isfinite(values).all():
                step = int(np.flatnonzero(~np.isfinite(values).all(1))[0])
                raise BadEpisode(
                    f"{self.name}: {key} holds a NaN or an infinity at step {step}; mend or leave "
                    "out the episode"
                )
        self.image_steps = self._image_steps()
        self.start = self._starts()
        self.images = {name: self._images(key) for name, key in self.layout.cameras.items()}

    def _array(self, key: str) -> h5py.Dataset:
        found = self.file.get(key)
        if not isinstance(found, h5py.Dataset):
            names: list[str] = []
            self.file.visititems(
                lambda n, item: names.append(f"/{n}") if isinstance(item, h5py.Dataset) else None
            )
            raise BadEpisode(
                f"{self.name} has no {key}, only {', '.join(names) or 'nothing'}; name what it has "
                "in a --mapping file"
            )
        return found

    def _numbers(self, key: str) -> np.ndarray:
        found = self._array(key)
        if found.ndim != 2 or found.dtype.kind not in "fiu":
            raise BadEpisode(
                f"{self.name}: {key} is {found.dtype}{list(found.shape)}, need numbers "
                "[steps, motors]; record it again"
            )
        values = np.asarray(found[()], np.float64)
        motors, columns = self.layout.motors, self.layout.columns
        if columns is not None:
            if max(columns) >= values.shape[1]:
                raise BadEpisode(
                    f"{self.name}: {key} has {values.shape[1]} columns, the --mapping file takes "
                    f"column {max(columns)}; correct `columns`"
                )
            values = values[:, columns]
        if values.shape[1] != len(motors):
            raise BadEpisode(
                f"{self.name}: {key} has {values.shape[1]} columns but {len(motors)} motors are "
                "named; name them in a --mapping file"
            )
        return values

    def _image_steps(self) -> np.ndarray | None:
        """Steps that have an image, if not all have."""
        if "image_indices" not in self.file:
            return None
        steps = np.asarray(self._array("image_indices")[()]).astype(np.int64).ravel()
        length = len(self)
        if len(steps) == 0 or (np.diff(steps) <= 0).any() or steps[0] < 0 or steps[-1] >= length:
            raise BadEpisode(
                f"{self.name}: /image_indices must name ascending steps from 0 to {length - 1}; "
                "record it again"
            )
        if steps[0] > 0:
            raise BadEpisode(
                f"{self.name}: its first image is of step {steps[0]}, so that the steps before "
                f"have no observation; cut the first {steps[0]} steps off"
            )
        return steps

    def _starts(self) -> np.ndarray:
        if "chunk_starts" not in self.file:
            return np.ones(len(self), bool)
        given = np.asarray(self._array("chunk_starts")[()]).ravel()
        is_mask = given.dtype == bool or (
            len(given) == len(self) and given[0] == 1 and np.isin(given, (0, 1)).all()
        )
        if is_mask and len(given) == len(self):
            return given.astype(bool)
        if is_mask or len(given) == 0 or given.min() < 0 or given.max() >= len(self):
            raise BadEpisode(
                f"{self.name}: /chunk_starts is neither a mask of {len(self)} steps nor steps from "
                f"0 to {len(self) - 1}; record it again"
            )
        start = np.zeros(len(self), bool)
        start[given.astype(np.int64)] = True
        return start

    def _images(self, key: str) -> H5Images:
        found = self._array(key)
        is_raw = found.ndim == 4 and found.shape[-1] == 3 and found.dtype == np.uint8
        is_encoded = found.ndim == 2 and found.dtype == np.uint8
        if found.ndim == 1:  # rows of different lengths
            is_encoded = h5py.check_vlen_dtype(found.dtype) == np.uint8
        if not (is_raw or is_encoded):
            raise BadEpisode(
                f"{self.name}: {key} is {found.dtype}{list(found.shape)}, need uint8 "
                "[steps, height, width, 3] or rows of JPEG; record it again"
            )
        rows: np.ndarray = np.arange(len(self))
        if self.image_steps is not None:
            rows = np.searchsorted(self.image_steps, rows, side="right") - 1
            if len(found) == len(self) and len(found) != len(self.image_steps):
                rows = self.image_steps[rows]  # a row for every step, some of them empty
            elif len(found) != len(self.image_steps):
                raise BadEpisode(
                    f"{self.name}: {key} has {len(found)} images but /image_indices names "
                    f"{len(self.image_steps)} steps; record it again"
                )
        elif len(found) != len(self):
            raise BadEpisode(
                f"{self.name}: {key} has {len(found)} images but {self.layout.action} has "
                f"{len(self)} steps; cut both to the steps that belong together"
            )
        return H5Images(self.name, key, found, rows, is_raw)
