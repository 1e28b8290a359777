"""The suite `pld_tabletop`: five LIBERO tasks built from files which come with the packages.

The objects are robosuite's, the bin is ours (`assets/bin.xml`), and the rest is LIBERO's own
machinery: BDDL files, `BDDLBaseDomain`, predicates, placement regions and stored init states. So
the suite runs wherever the packages are installed, with no download.

`register()` enters it into LIBERO's registries; this module itself does not import LIBERO.
"""

from __future__ import annotations

from pathlib import Path

SUITE = "pld_tabletop"
FOLDER = Path(__file__).resolve().parent
TASKS_DIR = FOLDER / "tasks"  # a task's BDDL file and, beside it, its init states

TASKS = (
    "lift_the_can",
    "pick_up_the_can_and_place_it_in_the_bin",
    "pick_up_the_milk_and_place_it_in_the_bin",
    "pick_up_the_bread_and_place_it_in_the_bin",
    "pick_up_the_cereal_and_place_it_in_the_bin",
)
DEFAULT_TASK = "pick_up_the_can_and_place_it_in_the_bin"


def register() -> None:
    """Register problem, objects, regions and benchmark with LIBERO. Calling it again is free."""
    from envs.pld_tabletop import problem  # noqa: F401  registers as it is imported
