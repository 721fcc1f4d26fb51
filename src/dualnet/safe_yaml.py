"""YAML that may be damaged or malicious: parsed within limits on nesting, aliases and numbers."""

from collections.abc import Iterable
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as SafeLoader  # ten times as fast; not every build of PyYAML has it
except ImportError:
    from yaml import SafeLoader

MAX_NODES = 250_000  # values with aliases expanded
MAX_NUMBER_LENGTH = 40
NUMBERS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


def parse_yaml(text: str, max_depth: int) -> Any:
    """The value of a document. Raises ValueError with the line of what is wrong."""
    try:
        check_depth(yaml.parse(text, SafeLoader), max_depth)
        loader = SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        count_nodes(node, {})
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{getattr(error, 'problem', error)}") from error
    except (KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"a value does not fit its tag, such as !!int: {error}") from error


def check_depth(events: Iterable[yaml.Event], most: int) -> None:
    """Limit the nesting before nodes are composed: that is recursive, and PyYAML's C code would crash."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > most:
            raise ValueError(f"line {event.start_mark.line + 1}: nested more than {most} levels deep")


def count_nodes(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Limit and return the number of nodes with aliases expanded; `sizes` caches it by the id of a node."""
    line = node.start_mark.line + 1
    if id(node) not in sizes:
        sizes[id(node)] = 0  # until it is known
        sizes[id(node)] = 1 + sum(count_nodes(child, sizes) for child in children_of(node))
    if sizes[id(node)] == 0:
        raise ValueError(f"line {line}: an alias refers to itself")
    if sizes[id(node)] > MAX_NODES:
        raise ValueError(f"line {line}: more than {MAX_NODES} values with aliases expanded")
    return sizes[id(node)]


def children_of(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        check_unique_keys([key for key, _ in node.value])
        return [child for pair in node.value for child in pair]
    if isinstance(node, yaml.SequenceNode):
        return node.value
    if node.tag in NUMBERS and len(node.value) > MAX_NUMBER_LENGTH:
        raise ValueError(f"line {node.start_mark.line + 1}: a number of {len(node.value)} characters")
    return []


def check_unique_keys(keys: Iterable[yaml.Node]) -> None:
    """YAML forbids duplicate keys, of which PyYAML keeps the last. Keys merged by `<<` may be given again."""
    seen: set[tuple[str, str]] = set()
    for key in keys:
        identity = (key.tag, str(key.value))
        if identity in seen and key.tag != MERGE:
            raise ValueError(f"line {key.start_mark.line + 1}: `{key.value}` is given twice; keep one of them")
        seen.add(identity)
