"""How deep a JSON Schema goes when its references are followed.

llguidance compiles schemas by recursion on the native stack, where Python guards nothing: 900 levels ended the process
with SIGSEGV (llguidance 1.9, a stack of 8 MiB, measured 2026-12-02). So a schema is measured before it is handed over.
Owns that measure; must not know what a schema means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

MAX_DEPTH = 256
MAX_LOOKUPS = 100_000  # references times the places that they may be meant from: a second of looking
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$id", "id", "$anchor", "$dynamicAnchor")


def too_deep(grammar: str) -> str | None:
    """Why the schemas in the lark text `grammar` must not be compiled, or None."""
    decoder = json.JSONDecoder()
    begin = 0
    while (begin := grammar.find("%json ", begin)) >= 0:
        begin += len("%json ")
        try:
            schema, begin = decoder.raw_decode(grammar, begin)
        except RecursionError:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        except ValueError:
            continue  # in a text of the grammar's, or nothing that would compile
        depth = schema_depth(schema)
        if depth is None:
            return "it has too many references and identifiers to be followed"
        if depth > MAX_DEPTH:
            return f"it goes {depth:,} levels deep when its references are followed, and {MAX_DEPTH} is the most"
    return None


def schema_depth(schema: Any) -> int | None:
    """At most so many objects are inside one another on any way through `schema` that enters each referred part once;
    None where that would take too long to say.

    Where references form no cycle, exact but for the unevenness of branches; what a cycle holds is added up.
    """
    objects = list(_objects(schema))
    anchored = [schema, *(o for o in objects if any(isinstance(o.get(key), str) for key in _ANCHORS))]
    references = {reference for o in objects for reference in _references(o)}
    if len(references) * len(anchored) > MAX_LOOKUPS:
        return None
    parts = _Parts(schema, references, anchored)
    longest = [0] * len(parts.depths)
    for group in _groups(parts.edges):  # what a group leads to comes before it
        beyond = max((longest[to] for part in group for to in parts.edges[part]), default=0)
        for part in group:
            longest[part] = beyond + sum(parts.depths[member] for member in group)
    return longest[0]


class _Parts:
    """A schema cut where references point: `depths[i]` objects are inside one another in part i, `edges[i]` are the
    parts that it leads to. Part 0 is the whole."""

    def __init__(self, schema: Any, references: Iterable[str], anchored: Sequence[Any]) -> None:
        self._targets = {reference: _targets(reference, anchored) for reference in references}
        parts = [schema]
        self._numbers = {id(schema): 0}
        for target in (target for targets in self._targets.values() for target in targets):
            if id(target) not in self._numbers:
                self._numbers[id(target)] = len(parts)
                parts.append(target)
        self.depths: list[int] = []
        self.edges: list[list[int]] = []
        for part in parts:
            self._measure(part)

    def _measure(self, part: Any) -> None:
        depth, edges = 0, set()
        waiting = [(part, 1)]
        while waiting:
            value, level = waiting.pop()
            depth = max(depth, level)
            if isinstance(value, dict):
                edges |= {self._numbers[id(t)] for reference in _references(value) for t in self._targets[reference]}
            for inner in _inner(value):
                if id(inner) in self._numbers:
                    edges.add(self._numbers[id(inner)])
                else:
                    waiting.append((inner, level + isinstance(inner, dict)))
        self.depths.append(depth)
        self.edges.append(sorted(edges))


def _targets(reference: str, anchored: Sequence[Any]) -> list[Any]:
    """All that `reference` may mean, from whichever of the places with an identifier of their own it is read."""
    _, _, fragment = reference.partition("#")
    found = [part for base in anchored for part in _at(base, fragment)] if fragment.startswith("/") else anchored
    return [part for part in found if isinstance(part, dict | list)]


def _references(value: Mapping[str, Any]) -> list[str]:
    return [value[key] for key in _REFERENCES if isinstance(value.get(key), str)]


def _inner(value: Any) -> list[Any]:
    """The objects and lists right inside."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in values if isinstance(inner, dict | list)]


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        waiting += _inner(value)


def _at(value: Any, pointer: str) -> list[Any]:
    """What a JSON pointer names: one thing or nothing."""
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return []
    return [value]


def _groups(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """The strongly connected groups of the parts, each after those that it leads to (Tarjan's algorithm)."""
    groups: list[list[int]] = []
    order: dict[int, int] = {}  # part → when it was entered
    lowest = [0] * len(edges)
    open_parts: list[int] = []
    is_open = [False] * len(edges)
    way = [(0, iter(edges[0]))]  # all parts are reached from the whole
    while way:
        part, ahead = way[-1]
        if part not in order:
            order[part] = lowest[part] = len(order)
            open_parts.append(part)
            is_open[part] = True
        following = next(ahead, None)
        if following is None:
            way.pop()
            if way:
                lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[part])
            if lowest[part] == order[part]:
                group: list[int] = []
                while not group or group[-1] != part:
                    group.append(open_parts.pop())
                    is_open[group[-1]] = False
                groups.append(group)
        elif following not in order:
            way.append((following, iter(edges[following])))
        elif is_open[following]:
            lowest[part] = min(lowest[part], order[following])
    return groups
