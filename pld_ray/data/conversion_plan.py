"""Which files there are to convert, what each is worth, and what the dataset will look like."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pld_ray.columns import IMAGE_PREFIX
from pld_ray.data import lerobot_format as v3
from pld_ray.data.aloha_file import MOTORS, AlohaEpisode, Layout
from pld_ray.data.aloha_part import Settings
from pld_ray.data.errors import BadEpisode, DataError


@dataclass(frozen=True)
class Source:
    """A file, recognised in a later run by folder, name and size."""

    folder: str
    path: pathlib.Path
    size: int
    value: float

    @property
    def name(self) -> str:
        """folder/file."""
        return f"{self.folder}/{self.path.name}" if self.folder != "." else self.path.name

    @property
    def key(self) -> str:
        """Name of its part."""
        return f"{self.folder}-{self.path.stem}-{self.size}".replace("/", "-")


@dataclass(frozen=True)
class Shape:
    """What all episodes of a dataset must have in common."""

    images: tuple[tuple[str, tuple[int, ...]], ...]
    extras: frozenset[str]
    length: int = 0


def find_sources(
    input_dir: pathlib.Path, settings: Settings, skip_bad: bool
) -> tuple[list[Source], dict[str, str]]:
    """The files in the order of the dataset, and what is left out with the reason.

    Raises:
        DataError: the folder does not exist, a folder has no score, there is no file, or two of
            them cannot be told apart.
    """
    if not input_dir.is_dir():
        raise DataError(f"{input_dir} is no folder; give the one that holds the score folders")
    found: dict[str, list[pathlib.Path]] = {}
    for path in sorted([*input_dir.glob("*.hdf5"), *input_dir.glob("*/*.hdf5")]):
        found.setdefault(path.parent.relative_to(input_dir).as_posix(), []).append(path)
    left_out = {}
    for folder in sorted(set(found) - set(settings.scores)):
        reason = (
            f"{input_dir}/{folder} holds {len(found[folder])} episodes but no score is known for "
            f"the folder {folder!r}; give it one, --score {folder}=1.0"
        )
        if not skip_bad:
            raise DataError(reason)
        left_out[folder] = reason
    wanted = episode_filter(settings.episodes)
    sources = [
        Source(folder, path, path.stat().st_size, value)
        for folder, value in settings.scores.items()
        for path in sorted(found.get(folder, ()), key=lambda p: (number_of(p), p.name))
        if wanted(folder, number_of(path))
    ]
    if not sources:
        raise DataError(
            f"{input_dir} has no episode_*.hdf5 in {', '.join(settings.scores)}"
            + (f" that --episodes={settings.episodes} selects" if settings.episodes else "")
            + "; give the folder above the score folders, and a --score for each"
        )
    check_keys(sources)
    return sources, left_out


def check_keys(sources: Sequence[Source]) -> None:
    """Refuse two files that would share a part.

    Raises:
        DataError: naming both.
    """
    known: dict[str, Source] = {}
    for source in sources:
        other = known.setdefault(source.key, source)
        if other is not source:
            raise DataError(
                f"{other.name} and {source.name} have the same size and, with - for /, the same "
                "name, so that one would be taken for the other; rename one of them"
            )


def number_of(path: pathlib.Path) -> int:
    """12 of episode_12.hdf5; -1 without a number."""
    match = re.search(r"(\d+)$", path.stem)
    return int(match[1]) if match else -1


def episode_filter(text: str) -> Callable[[str, int], bool]:
    """Of `0,3,10:20,score_1/7`: numbers or ranges (without their end), of one folder or of all."""
    ranges: list[tuple[str | None, int, int]] = []
    for item in filter(None, text.split(",")):
        folder, _, numbers = item.strip().rpartition("/")
        first, colon, end = numbers.partition(":")
        try:
            low = int(first or 0)
            high = (int(end) if end else 1 << 60) if colon else low + 1
        except ValueError:
            raise DataError(
                f"--episodes={text}: {item!r} is no number and no range; write 0,3,10:20 or "
                "score_1/7"
            ) from None
        ranges.append((folder or None, low, high))
    return lambda folder, number: (
        not ranges or any(f in (None, folder) and a <= number < b for f, a, b in ranges)
    )


def examine(
    sources: Sequence[Source], layout: Layout, on_file: Callable[[], None] = lambda: None
) -> tuple[dict[str, Shape], dict[str, str]]:
    """Look into every file; shapes of those that can be converted, reasons for the others."""
    shapes: dict[str, Shape] = {}
    reasons: dict[str, str] = {}
    first: tuple[str, Shape] | None = None
    for source in sources:
        try:
            shape = examine_one(source, layout)
            if first is not None and shape.images != first[1].images:
                raise BadEpisode(
                    f"{source.name}: its images are {sizes(shape)}, those of {first[0]} are "
                    f"{sizes(first[1])}; convert episodes of one size at a time"
                )
        except BadEpisode as error:
            reasons[source.name] = str(error)
        else:
            first = first or (source.name, shape)
            shapes[source.name] = shape
        on_file()
    return shapes, reasons


def examine_one(source: Source, layout: Layout) -> Shape:
    """Open one file and look at its first images."""
    with AlohaEpisode(source.path, layout, source.name) as episode:
        images = tuple((name, camera.pixels(0).shape) for name, camera in episode.images.items())
        return Shape(images, frozenset(episode.others), len(episode))


def sizes(shape: Shape) -> str:
    """`cam_high 480x640, ...`."""
    return ", ".join(f"{name} {height}x{width}" for name, (height, width, _) in shape.images)


def make_features(shapes: Sequence[Shape], layout: Layout, settings: Settings) -> v3.Features:
    """Of the dataset; velocity and effort only where every episode has them.

    Raises:
        DataError: the settings do not fit the motors or the cameras.
    """
    if settings.joint_convention == "openpi" and len(layout.motors) != len(MOTORS):
        raise DataError(
            f"--joint_convention=openpi is known for ALOHA's {len(MOTORS)} columns, the mapping "
            f"names {len(layout.motors)}; use raw"
        )
    motors = v3.vector(layout.motors)
    features = {"observation.state": motors, "action": motors}
    for kind in ("velocity", "effort"):
        if all(kind in shape.extras for shape in shapes):
            features[f"observation.{kind}"] = motors
    for name, (height, width, _) in shapes[0].images:
        if settings.mode == "video" and "/" in name:
            raise DataError(
                f"--mode=video: the camera {name!r} names a folder of videos, which must not hold "
                "a /; give it another name in the --mapping file"
            )
        features[IMAGE_PREFIX + name] = v3.camera(settings.mode, height, width)
    features["next.reward"] = v3.scalar("float32")
    for name in ("next.done", "next.success", "start"):
        features[name] = v3.scalar("bool")
    return features | v3.INDEX_FEATURES
