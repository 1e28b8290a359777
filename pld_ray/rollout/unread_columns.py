"""What an environment shows that nobody who acts or learns will look at."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable

from pld_ray.columns import IMAGE_PREFIX, READ_COLUMNS, VECTOR_KEYS

logger = logging.getLogger(__name__)


def tell_unread(columns: Iterable[str], policy_reads: Collection[str]) -> None:
    """Warn once of columns under names that neither the networks nor the base policy read.

    They are no mistake where they are only recorded, so nothing is refused.

    Args:
        columns: names of the environment's observations.
        policy_reads: names of those that the base policy asks for.
    """
    read = {*READ_COLUMNS, *policy_reads}
    unread = sorted(c for c in columns if c not in read and not c.startswith(IMAGE_PREFIX))
    if unread:
        _warn(tuple(unread))


@functools.cache
def _warn(unread: tuple[str, ...]) -> None:
    logger.warning(
        "the environment's observations %s are stored, but neither the networks nor the base "
        "policy read them: networks read %s and pictures %sNAME",
        list(unread),
        ", ".join(VECTOR_KEYS[:2]),
        IMAGE_PREFIX,
    )
