"""Collected base-policy data on disk: found again by later runs, refused when it is not theirs."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import uuid
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from pld_ray.columns import Columns
from pld_ray.errors import UserError
from pld_ray.files.access import who_may_read
from pld_ray.files.manifest import sha256
from pld_ray.files.tensors import save_arrays
from pld_ray.options import same_places
from pld_ray.rollout.episode import concatenate_episodes, split_episodes

FORMAT_VERSION = 2
META_FILE = "collection.json"


class OfflineCacheError(UserError, ValueError):
    """The cache belongs to something else, or is damaged; the message says which and what to do."""


class OfflineCache:
    """One folder: `offline.safetensors`, `warmup.safetensors` and `collection.json`.

    Args:
        folder: where the cache is, or will be.
        identity: all that shapes the data; a cache whose identity differs in any key is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.folder = pathlib.Path(folder)
        self.identity = identity

    def exists(self) -> bool:
        """Whether the folder holds a cache (of whatever identity).

        Raises:
            OfflineCacheError: this user may not look.
        """
        try:
            return (self.folder / META_FILE).exists()
        except PermissionError:
            raise self._kept_secret() from None

    def check_writable(self) -> None:
        """See, before anything is collected, that a cache could be kept here.

        Raises:
            OfflineCacheError: the folder holds something else, which is never deleted, or it
                cannot be made.
        """
        if self.exists():
            return
        is_folder = self.folder.is_dir()
        if any(self.folder.iterdir()) if is_folder else self.folder.exists():
            raise OfflineCacheError(
                f"{self.folder} is there and no cache of base-policy data ({META_FILE} is missing "
                "in it): choose a new or an empty folder with --offline_cache"
            )
        above = next(path for path in self.folder.absolute().parents if path.exists())
        if not above.is_dir():
            raise self._unwritable(f"{above} is no folder")
        if not os.access(above, os.W_OK):
            raise self._unwritable(f"no permission to write to {above}")

    def save(self, offline: list[Columns], warmup: list[Columns], rounds: list[int]) -> None:
        """Write all files aside, then move the folder into place.

        A cache that another run has put there meanwhile stays: what it holds is as good.

        Args:
            offline: successful episodes.
            warmup: episodes of the warm-up.
            rounds: environment steps of each round in which they were collected.

        Raises:
            OfflineCacheError: as `check_writable`; nothing is left behind.
        """
        self.check_writable()
        partial = self.folder.parent / f".partial-{uuid.uuid4().hex}"  # 0700 if it were tempfile's
        try:
            partial.mkdir(parents=True)
            meta: dict[str, Any] = {"identity": self.identity, "rounds": rounds}
            for name, episodes in (("offline", offline), ("warmup", warmup)):
                columns, lengths = concatenate_episodes(episodes)
                file = partial / f"{name}.safetensors"
                save_arrays(columns, file)
                meta[name] = {"episode_lengths": lengths, "sha256": sha256(file)}
            (partial / META_FILE).write_text(json.dumps(meta, indent=1))
            os.replace(partial, self.folder)  # refused by the system unless the folder is empty
        except OSError as error:
            if not self.exists():
                raise self._unwritable(error.strerror or str(error)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def load(self) -> tuple[list[Columns], list[Columns], list[int]]:
        """Offline episodes, warm-up episodes, and the environment steps of each round.

        Raises:
            OfflineCacheError: another identity, or a file that is damaged or may not be read.
        """
        meta = self._own_meta()
        parts = [self._load_part(name, meta) for name in ("offline", "warmup")]
        try:
            rounds = [int(steps) for steps in meta["rounds"]]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(self.folder / META_FILE, f"it cannot be read ({error})") from error
        return parts[0], parts[1], rounds

    def check(self) -> None:
        """See, before anything is played, that the cache is of this identity, or could be kept.

        Raises:
            OfflineCacheError: as `load`, of its `collection.json` alone, and as `check_writable`.
        """
        if self.exists():
            self._own_meta()
        else:
            self.check_writable()

    def _own_meta(self) -> dict[str, Any]:
        """`collection.json`, of this identity."""
        path = self.folder / META_FILE
        try:
            meta: dict[str, Any] = json.loads(path.read_text())
            found = dict(meta["identity"])
        except PermissionError:
            raise self._kept_secret(path) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(path, f"it cannot be read ({error})") from error
        for key in {**self.identity, **found}:
            wanted = self.identity.get(key)
            if not same_places(found.get(key), wanted):  # those of older runs are as typed
                raise OfflineCacheError(
                    f"the offline cache {self.folder} was collected with {key}={found.get(key)!r} "
                    f"but this run has {key}={wanted!r}: choose another folder with "
                    "--offline_cache, or delete this one to collect anew"
                )
        return meta

    def _load_part(self, name: str, meta: dict[str, Any]) -> list[Columns]:
        file = self.folder / f"{name}.safetensors"
        try:
            if sha256(file) != meta[name]["sha256"]:
                raise self._damaged(file, "its checksum differs from the one recorded")
            return split_episodes(load_file(file), meta[name]["episode_lengths"])
        except PermissionError:
            raise self._kept_secret(file) from None
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise self._damaged(file, f"it cannot be read ({error})") from error

    def _unwritable(self, why: str) -> OfflineCacheError:
        return OfflineCacheError(
            f"the offline cache {self.folder} cannot be written ({why}): choose another folder "
            "with --offline_cache"
        )

    def _kept_secret(self, path: pathlib.Path | None = None) -> OfflineCacheError:
        return OfflineCacheError(
            f"the offline cache {self.folder} may not be read: "
            f"{who_may_read(path or self.folder / META_FILE)}, or choose another folder with "
            "--offline_cache"
        )

    def _damaged(self, file: pathlib.Path, why: str) -> OfflineCacheError:
        return OfflineCacheError(
            f"the offline cache file {file} is damaged: {why}; delete {self.folder} to collect anew"
        )
