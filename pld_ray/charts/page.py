"""What self-contained pages share: templates and the style sheet."""

from __future__ import annotations

import pathlib

import jinja2
from markupsafe import Markup


def templates(folder: pathlib.Path) -> jinja2.Environment:
    """Templates that escape what they show and fail on a name that they were not given."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def style_sheet() -> Markup:
    """Colours in the light and in the dark, texts, tables, charts."""
    return Markup((pathlib.Path(__file__).parent / "assets" / "style.css").read_text())
