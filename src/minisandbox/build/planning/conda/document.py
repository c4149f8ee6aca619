"""The YAML of ``environment.yml`` and ``conda env export``: its entries as text, with their lines.

Nodes are read, not values: to YAML an unquoted ``1.10`` is the number 1.1, and no value knows its
line.
"""

# The stubs leave the argument of yaml.compose open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass

import yaml

from minisandbox.errors import InvalidInput


@dataclass(frozen=True)
class Entry:
    """One dependency as it is written; ``where`` names file and line."""

    text: str
    where: str


@dataclass(frozen=True)
class Document:
    """The two lists of an environment file, and names of variables that it sets."""

    conda: tuple[Entry, ...]
    pip: tuple[Entry, ...]
    variables: tuple[str, ...]


def read(text: str, *, where: str) -> Document:
    """Parse an environment file; raises ``InvalidInput`` that names the line."""
    keys = _mapping(_compose(text, where), where)
    if "dependencies" not in keys:
        raise InvalidInput(
            where, "has no 'dependencies'", "expected the text of a conda environment file"
        )
    conda: list[Entry] = []
    pip: list[Entry] = []
    for node in _sequence(keys["dependencies"], where):
        if isinstance(node, yaml.MappingNode):
            inner = _mapping(node, where)
            if set(inner) != {"pip"}:
                raise InvalidInput(
                    _at(node, where),
                    f"has {', '.join(sorted(inner)) or 'an empty mapping'} among the dependencies",
                    "conda knows 'pip' there only",
                )
            pip += [_entry(item, where) for item in _sequence(inner["pip"], where)]
        else:
            conda.append(_entry(node, where))
    variables = _mapping(keys["variables"], where) if "variables" in keys else {}
    return Document(conda=tuple(conda), pip=tuple(pip), variables=tuple(variables))


def _compose(text: str, where: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidInput(f"{where}{line}", f"is not YAML ({problem})") from None
    except RecursionError:
        raise InvalidInput(where, "is not an environment file (nested too deep)") from None
    if root is None:
        raise InvalidInput(where, "is empty", "expected the text of a conda environment file")
    return root


def _mapping(node: yaml.Node, where: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise InvalidInput(_at(node, where), "is not a mapping", "expected 'key: value' lines")
    keys: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _entry(key, where).text
        if name in keys:
            raise InvalidInput(_at(key, where), f"has {name!r} a second time", "keep one")
        keys[name] = value
    return keys


def _sequence(node: yaml.Node, where: str) -> list[yaml.Node]:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return []  # "- pip:" with nothing below it, as exports have it
    if not isinstance(node, yaml.SequenceNode):
        raise InvalidInput(_at(node, where), "is not a list", "expected '- name' lines")
    return node.value


def _entry(node: yaml.Node, where: str) -> Entry:
    if not isinstance(node, yaml.ScalarNode) or not str(node.value).strip():
        raise InvalidInput(_at(node, where), "is not text", "expected one '- name' a line")
    return Entry(str(node.value).strip(), _at(node, where))


def _at(node: yaml.Node, where: str) -> str:
    return f"{where} line {node.start_mark.line + 1}"
