"""The LIBERO problem class, the region sampler and the benchmark of `pld_tabletop`."""

# ruff: noqa: E402  LIBERO must not be imported before the bootstrap
from __future__ import annotations

import functools
import hashlib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from envs.bootstrap import cache_dir, import_libero, write_atomically

import_libero()

import robosuite.models
from libero.libero import benchmark
from libero.libero.envs.bddl_base_domain import TASK_MAPPING, register_problem
from libero.libero.envs.regions import REGION_SAMPLERS, MultiRegionRandomSampler

from envs.pld_tabletop import (
    SUITE,
    TASKS,
    TASKS_DIR,
    objects,  # noqa: F401  registers the objects
)


@functools.cache
def arena_xml() -> Path:
    """robosuite's table arena with the names that LIBERO's `TableArena` looks for.

    LIBERO renames the files of two textures, "texplane" and "tex-wall"; robosuite ships both files
    but calls the second one after its picture. Reflections are switched off: each costs a second
    render pass. The copy is written to the user's cache, because MJCF is read from a file.
    """
    source = Path(robosuite.models.assets_root) / "arenas" / "table_arena.xml"
    root = ET.parse(source).getroot()
    for element in root.iter():
        for attribute in ("name", "texture"):
            if element.get(attribute) == "tex-light-gray-plaster":
                element.set(attribute, "tex-wall")
        if element.tag == "texture" and element.get("file"):
            element.set("file", str((source.parent / element.attrib["file"]).resolve()))
        if element.tag == "material":
            element.set("reflectance", "0")
    text = ET.tostring(root, encoding="unicode")
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    copy = cache_dir() / f"pld_table_arena-{digest}.xml"
    if not copy.is_file():
        write_atomically(copy, text)
    return copy


class TabletopRegionSampler(MultiRegionRandomSampler):
    """Uniform placement in a rectangle of the table with a random yaw.

    LIBERO's own `TableRegionSampler` answers quaternions as xyzw where robosuite reads wxyz, which
    would turn the objects upside down; the base class has the order right.
    """

    def __init__(
        self,
        object_name: str,
        mujoco_objects: Any = None,
        x_ranges: Any = None,
        y_ranges: Any = None,
        rotation: Any = (0.0, 0.0),
        rotation_axis: str = "z",
        reference_pos: Any = (0.0, 0.0, 0.0),
    ) -> None:
        super().__init__(
            f"pld-{object_name}",
            mujoco_objects,
            x_ranges,
            y_ranges,
            rotation,
            rotation_axis,
            ensure_object_boundary_in_range=False,
            ensure_valid_placement=True,
            reference_pos=reference_pos,
            z_offset=0.01,
        )


REGION_SAMPLERS[SUITE] = {"table": TabletopRegionSampler}


# LIBERO's decorators return None, hence the plain calls and the look-up of the parent class.
_Tabletop: Any = TASK_MAPPING["libero_tabletop_manipulation"]


class PLD_Tabletop(_Tabletop):  # type: ignore[misc]
    """LIBERO's tabletop domain on robosuite's own table. The name is that of the BDDL problem."""

    def __init__(self, bddl_file_name: str, *args: Any, **kwargs: Any) -> None:
        # an absolute path survives LIBERO's join with its assets folder
        kwargs.setdefault("scene_xml", str(arena_xml()))
        super().__init__(bddl_file_name, *args, **kwargs)

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        super()._initialize_sim(xml_string)
        self.sim.model._model.vis.quality.offsamples = 0  # multisampling halves the frame rate


register_problem(PLD_Tabletop)


class PLD_TABLETOP(benchmark.Benchmark):  # type: ignore[misc]
    """The benchmark entry, so that LIBERO's and LeRobot's tools find the suite by its name."""

    def __init__(self, task_order_index: int = 0) -> None:
        super().__init__(task_order_index)
        self.name = SUITE
        self.tasks = [
            benchmark.Task(
                name=task,
                language=task.replace("_", " "),
                problem="Libero",
                problem_folder=str(TASKS_DIR),  # absolute: wins over LIBERO's own folders
                bddl_file=f"{task}.bddl",
                init_states_file=f"{task}.pruned_init",
            )
            for task in TASKS
        ]
        self.n_tasks = len(self.tasks)


benchmark.register_benchmark(PLD_TABLETOP)
