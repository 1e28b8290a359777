"""Camera videos as LeRobot writes them: AV1 at CRF 30, a keyframe every second frame."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

os.environ.setdefault("SVT_LOG", "1")  # before libav: the encoder tells its life otherwise

import av
import numpy as np

ENCODER = {"g": 2, "crf": 30, "preset": 12, "fast_decode": 0}
"""Of `lerobot.configs.video.RGBEncoderConfig`."""


class VideoEncoder:
    """Writes RGB frames [H, W, 3] uint8 into an MP4 file, on one thread."""

    def __init__(self, path: pathlib.Path, fps: int, height: int, width: int) -> None:
        self._container: Any = av.open(str(path), "w")
        options = {key: str(ENCODER[key]) for key in ("g", "crf", "preset")}
        options["svtav1-params"] = f"fast-decode={ENCODER['fast_decode']}:lp=1"
        stream: Any = self._container.add_stream("libsvtav1", fps, options=options)
        stream.pix_fmt, stream.height, stream.width = "yuv420p", height, width
        stream.time_base = Fraction(1, fps)
        with scheduling_kept():
            stream.codec_context.open()
        self._stream, self._fps, self._count = stream, fps, 0

    def add(self, image: np.ndarray) -> None:
        """The next frame."""
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = self._count, Fraction(1, self._fps)
        self._container.mux(self._stream.encode(frame))
        self._count += 1

    def close(self) -> None:
        """Write what is still in the encoder."""
        self._container.mux(self._stream.encode())
        self._container.close()


@contextlib.contextmanager
def scheduling_kept() -> Iterator[None]:
    """What is started within is scheduled as this thread was, and so is this thread after it.

    As root SVT-AV1 makes its threads, and the one that opens it, real-time ones of the highest
    priority. The processes that they start later inherit it, and nothing else gets to run.
    """
    if not hasattr(os, "sched_getscheduler"):  # on Linux alone
        yield
        return
    own = os.sched_getscheduler(0), os.sched_getparam(0)
    others = set(os.listdir("/proc/self/task"))
    try:
        yield
    finally:
        started = set(os.listdir("/proc/self/task")) - others
        for thread in (0, *map(int, started)):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setscheduler(thread, *own)


def concatenate(paths: Sequence[pathlib.Path], target: pathlib.Path) -> None:
    """Videos of one encoder behind each other in one file, without encoding again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".ffconcat", dir=target.parent) as playlist:
        lines = [f"file '{quoted(path)}'" for path in paths]
        playlist.write("\n".join(["ffconcat version 1.0", *lines, ""]))
        playlist.flush()
        with (
            av.open(playlist.name, format="concat", options={"safe": "0"}) as source,
            av.open(str(target), "w", options={"movflags": "faststart"}) as output,
        ):
            stream_in = source.streams.video[0]
            stream_out = output.add_stream_from_template(stream_in, opaque=True)
            stream_out.time_base = stream_in.time_base
            for packet in source.demux(stream_in):
                if packet.dts is not None:
                    packet.stream = stream_out
                    output.mux(packet)


def quoted(path: pathlib.Path) -> str:
    """A path within the single quotes of a playlist."""
    return str(path.resolve()).replace("'", "'\\''")


def describe(path: pathlib.Path) -> dict[str, Any]:
    """What `info.json` says about a camera's videos."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.base_rate is not None
        found = {
            "video.height": stream.height,
            "video.width": stream.width,
            "video.codec": stream.codec.canonical_name,
            "video.pix_fmt": stream.pix_fmt,
            "video.fps": int(stream.base_rate),
            "video.channels": 3,
            "has_audio": False,
        }
    encoder = {f"video.{key}": value for key, value in ENCODER.items()}
    backend = {"video.video_backend": "pyav", "video.extra_options": {}, "is_depth_map": False}
    return found | encoder | backend


def read_frames(path: pathlib.Path, seconds: Sequence[float], fps: float) -> list[np.ndarray]:
    """Frames [H, W, 3] uint8 at ascending times of a video."""
    images: list[np.ndarray] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        tolerance = 0.5 / fps
        for second in seconds:
            container.seek(int(second / stream.time_base), stream=stream, backward=True)
            for frame in container.decode(stream):
                if frame.time is not None and frame.time >= second - tolerance:
                    images.append(frame.to_ndarray(format="rgb24"))
                    break
            else:
                raise ValueError(f"{path} has no frame at {second:.3f} s")
    return images
