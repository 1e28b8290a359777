"""Charts as inline SVG, and what self-contained pages share."""
