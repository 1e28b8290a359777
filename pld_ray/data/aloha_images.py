"""Images of one camera in an HDF5 file: raw, or rows of JPEG."""

from __future__ import annotations

from typing import Any

import cv2
import h5py
import numpy as np

from pld_ray.data.errors import BadEpisode

COLOR_ATTRIBUTES = ("color", "color_order", "encoding")
SLAB = 32  # images read at a time, since HDF5 chunks often span several


class H5Images:
    """Images of one camera; a row that serves several steps is decoded once."""

    def __init__(
        self, name: str, key: str, rows: h5py.Dataset, row_of: np.ndarray, is_raw: bool
    ) -> None:
        self.name, self.key, self.is_raw = name, key, is_raw
        self._rows, self._row_of = rows, row_of
        self._slab: tuple[int, Any] = (-1, None)
        self._decoded: tuple[int, Any] = (-1, None)
        self._file: tuple[int, bytes] = (-1, b"")
        self.swap = False
        """Exchange red and blue."""
        self.shape: tuple[int, ...] = ()
        """(H, W, 3) that every image must have, once it is set."""

    def pixels(self, frame: int) -> np.ndarray:
        """RGB, [H, W, 3] uint8."""
        row = int(self._row_of[frame])
        if self._decoded[0] != row:
            image = self._read(row) if self.is_raw else self._decode(row, frame)
            if self.shape and image.shape != self.shape:
                raise BadEpisode(
                    f"{self.name}: the image of step {frame} in {self.key} is "
                    f"{image.shape[0]}x{image.shape[1]}, the others are {self.shape[0]}x"
                    f"{self.shape[1]}; convert episodes of one size at a time"
                )
            self._decoded = row, np.ascontiguousarray(image[..., ::-1]) if self.swap else image
        return self._decoded[1]

    def encoded(self, frame: int) -> tuple[bytes, str] | None:
        """The JPEG as it was recorded, if it needs no change; it is decoded to see that it can."""
        if self.is_raw or self.swap:
            return None
        self.pixels(frame)
        data = self._bytes(int(self._row_of[frame]), frame)
        return (data, "jpg") if data.startswith(b"\xff\xd8") and num_channels(data) == 3 else None

    def _read(self, row: int) -> np.ndarray:
        slab = row // SLAB
        try:
            if self._slab[0] != slab:
                self._slab = slab, self._rows[slab * SLAB : (slab + 1) * SLAB]
            return self._slab[1][row - slab * SLAB]
        except OSError as error:
            raise BadEpisode(
                f"{self.name}: {self.key} is damaged at image {row} ({error}); copy or record it "
                "again"
            ) from None

    def _bytes(self, row: int, frame: int) -> bytes:
        """One encoded file, without what pads the row."""
        if self._file[0] != row:
            data = np.asarray(self._read(row), np.uint8).tobytes()
            if data.startswith(b"\xff\xd8"):
                data = data[: data.rfind(b"\xff\xd9") + 2]
            if len(data) < 4:
                raise self._undecodable(frame)
            self._file = row, data
        return self._file[1]

    def _decode(self, row: int, frame: int) -> np.ndarray:
        data = np.frombuffer(self._bytes(row, frame), np.uint8)
        try:
            image = cv2.imdecode(data, cv2.IMREAD_COLOR)
        except cv2.error:
            image = None
        if image is None:
            raise self._undecodable(frame)
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)

    def _undecodable(self, frame: int) -> BadEpisode:
        return BadEpisode(
            f"{self.name}: the image of step {frame} in {self.key} does not decode; record it "
            "again or leave the episode out"
        )

    def declared_color(self) -> str | None:
        """`rgb` or `bgr` as attributes of the array, its group or the file name it."""
        for place in (self._rows, self._rows.parent, self._rows.file):
            for attribute in COLOR_ATTRIBUTES:
                value = place.attrs.get(attribute)
                text = value.decode() if isinstance(value, bytes) else value
                if isinstance(text, str) and text[:3].lower() in ("rgb", "bgr"):
                    return text[:3].lower()
        return None


def num_channels(jpeg: bytes) -> int:
    """Components of a JPEG file, from its frame header; 0 if there is none."""
    at = 2
    while at + 9 < len(jpeg) and jpeg[at] == 0xFF:
        marker = jpeg[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return jpeg[at + 9]
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return 0
