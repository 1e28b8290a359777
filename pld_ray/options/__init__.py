"""An option declared once: default, meaning, range; what checks, prints and completes reads that.

    utd: float = option(1.0, "Gradient steps per stored environment step.", within="[0, 1000]")

A choice is a `Literal`, null is allowed where the annotation says `| None`, NaN and infinity never
are. Nothing here imports what takes time.
"""

from pld_ray.options.check import (
    LOCAL,
    check_local,
    check_options,
    check_paths,
    fits,
    unfit,
    values_of,
)
from pld_ray.options.convert import as_type, from_text, is_plain_number
from pld_ray.options.declare import Field, fields_of, option, with_default, without_none
from pld_ray.options.describe import choices_of, shown, type_name
from pld_ray.options.paths import same_places, with_absolute_paths, with_home

__all__ = [
    "LOCAL",
    "Field",
    "as_type",
    "check_local",
    "check_options",
    "check_paths",
    "choices_of",
    "fields_of",
    "fits",
    "from_text",
    "is_plain_number",
    "option",
    "same_places",
    "shown",
    "type_name",
    "unfit",
    "values_of",
    "with_absolute_paths",
    "with_default",
    "with_home",
    "without_none",
]
