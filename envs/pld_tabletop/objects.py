"""The movable objects of `pld_tabletop`, registered under their BDDL category names `pld_*`."""

# ruff: noqa: E402  LIBERO must not be imported before the bootstrap
from __future__ import annotations

from typing import Any

from envs.bootstrap import import_libero

import_libero()

from libero.libero.envs.base_object import register_object
from robosuite.models.objects import (
    BreadObject,
    CanObject,
    CerealObject,
    MilkObject,
    MujocoXMLObject,
)

from envs.pld_tabletop import FOLDER

YAW_RANGE = (-0.25, 0.25)  # radians, about the vertical axis: within reach of a fixed wrist


def _describe(obj: Any, category: str, rotation: tuple[float, float]) -> None:
    """Set the attributes which LIBERO expects on every object it places and tracks."""
    obj.category_name = category
    obj.rotation = rotation
    obj.rotation_axis = "z"
    obj.object_properties = {"vis_site_names": {}}


@register_object
class PldCan(CanObject):
    def __init__(self, name: str = "pld_can", joints: Any = None) -> None:
        super().__init__(name=name)
        _describe(self, "pld_can", YAW_RANGE)


@register_object
class PldMilk(MilkObject):
    def __init__(self, name: str = "pld_milk", joints: Any = None) -> None:
        super().__init__(name=name)
        _describe(self, "pld_milk", YAW_RANGE)


@register_object
class PldBread(BreadObject):
    def __init__(self, name: str = "pld_bread", joints: Any = None) -> None:
        super().__init__(name=name)
        _describe(self, "pld_bread", YAW_RANGE)


@register_object
class PldCereal(CerealObject):
    def __init__(self, name: str = "pld_cereal", joints: Any = None) -> None:
        super().__init__(name=name)
        _describe(self, "pld_cereal", YAW_RANGE)


@register_object
class PldBin(MujocoXMLObject):
    """An open box with a `contain_region` site for the predicate `In`."""

    def __init__(self, name: str = "pld_bin", joints: Any = None) -> None:
        super().__init__(
            str(FOLDER / "assets" / "bin.xml"),
            name=name,
            joints=[{"type": "free", "damping": "0.0005"}],
            obj_type="all",
            duplicate_collision_geoms=False,
        )
        _describe(self, "pld_bin", (0.0, 0.0))
