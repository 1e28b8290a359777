"""Reading YAML that a stranger wrote: plain data of a bounded size, or one sentence."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
"""Values of a file, each counted as often as its aliases repeat it."""
MAX_DEPTH = 50
ODD_NUMBER = re.compile(r"[+-]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""What YAML 1.1 reads in base 8 or 60, and hardly anybody who writes it: 010, 1:30."""


class YamlError(ValueError):
    """The text is no YAML that can be used; the message says why."""


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a file; empty where the file is.

    Raises:
        YamlError: naming the file: it cannot be read, is larger than `MAX_BYTES`, not UTF-8, not
            valid YAML, holds a key twice, an object, or no mapping.
    """
    path = pathlib.Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise YamlError(f"{path} cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise YamlError(f"{path} is larger than {MAX_BYTES:,} bytes: it is no configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError(f"{path} is not text in UTF-8: save it as such") from error
    try:
        node = parse_yaml(text)
    except YamlError as error:
        raise YamlError(f"{path} is not valid YAML: {error}") from error
    if node is None:
        return {}
    if not isinstance(node, dict):
        raise YamlError(f"{path} must hold a mapping, not a {type(node).__name__}")
    return node


def parse_yaml(text: str) -> Any:
    """The data in a text.

    Raises:
        YamlError: saying what is wrong and in which line.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count(node, 0, 0)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except YamlError:
        raise
    except RecursionError as error:
        raise YamlError(f"it is nested more than {MAX_DEPTH} deep") from error
    except Exception as error:  # PyYAML's constructors raise whatever a value makes them raise
        raise YamlError(" ".join(str(error).split()) or type(error).__name__) from error


def _count(node: yaml.Node, depth: int, seen: int) -> int:
    """Nodes below, aliases expanded; a cycle is deeper than any limit."""
    if depth > MAX_DEPTH:
        raise YamlError(f"it is nested more than {MAX_DEPTH} deep, or contains itself")
    seen += 1
    if seen > MAX_NODES:
        raise YamlError(f"its aliases make more than {MAX_NODES:,} values of it")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            seen = _count(item, depth + 1, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            seen = _count(value, depth + 1, _count(key, depth + 1, seen))
    return seen


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, and numbers in base 8 or 60."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if is_number and ODD_NUMBER.fullmatch(str(node.value)):
            raise YamlError(
                f"{node.value[:80]} in line {node.start_mark.line + 1} would be a number in base "
                "8 or 60: write it as a decimal one, or in quotes if it is a text"
            )
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines and key.tag != "tag:yaml.org,2002:merge":
                raise YamlError(
                    f"key {key.value[:80]} stands twice, in lines {lines[key.value]} and {line}"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)
