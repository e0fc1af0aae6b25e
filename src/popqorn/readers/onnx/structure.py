"""The graph of a model: every name is defined before it is used, functions are written out, only what is asked for is kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from popqorn.readers.onnx.file import graphs_of, required, tensors_of

OLDEST = 7  # version of the operators: before, shapes were broadcast by other rules
MOST_NODES = 200_000

Function = tuple[str, str]  # its domain and name


@dataclass(frozen=True, eq=False)
class Program:
    """A checked model with one output, and everything that leads to it."""

    file: str
    model: Any = field(repr=False)
    version: int

    @property
    def graph(self) -> Any:
        return self.model.graph

    @property
    def output(self) -> Any:
        """The description of the one output."""
        return self.graph.output[0]

    @property
    def inputs(self) -> list[Any]:
        """The descriptions of what has to be given."""
        weights = {tensor.name for tensor in self.graph.initializer}
        return [value for value in self.graph.input if value.name not in weights]


def checked(model: Any, file: str, output: str | None) -> Program:
    """The program of one output of a model, by default the first."""
    if model.functions:
        model = _without_functions(model, file)
    version = _version(model, file)
    _plain_domains(model.graph)
    _check_names(model.graph, set(), file)
    names = [value.name for value in model.graph.output]
    if not names:
        raise ValueError(f"path: {file}: the graph has no output; the file is truncated, export it again")
    if output is not None and output not in names:
        raise ValueError(f"output is {output!r}; the outputs of {file} are {', '.join(map(repr, names))}")
    return Program(file, _leading_to(model, names[0] if output is None else output), version)


def _version(model: Any, file: str) -> int:
    """Of the operators the model is written in."""
    newest = required("onnx").defs.onnx_opset_version()
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions:
        raise ValueError(f"path: {file} does not say which version of ONNX's operators it uses; export it again")
    if not OLDEST <= versions[0] <= newest:
        raise ValueError(
            f"path: {file} uses version {versions[0]} of ONNX's operators; versions {OLDEST} to {newest} can be read: export it "
            "with one of these, or convert it with onnx.version_converter"
        )
    return int(versions[0])


def _plain_domains(graph: Any) -> None:
    """`ai.onnx` is the long name of the domain without one."""
    for node in graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
        for inner in graphs_of(node):
            _plain_domains(inner)


def _check_names(graph: Any, outer: set[str], file: str) -> None:
    """Every name is defined once, and before it is used."""
    defined = outer | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    later = {name for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            if name and name not in defined:
                reason = "before any node computes it: nodes stand in a cycle or out of order" if name in later else "undefined"
                raise ValueError(f"path: {file}: {described(node)} uses {name!r}, which is {reason}; the file is damaged")
        for inner in graphs_of(node):
            _check_names(inner, defined, file)
        for name in node.output:
            if name and name in defined:
                raise ValueError(f"path: {file}: {described(node)} defines {name!r} a second time; the file is damaged")
            defined.add(name)
    for value in graph.output:
        if value.name not in defined:
            raise ValueError(f"path: {file}: nothing computes the output {value.name!r}; the file is damaged or truncated")


def described(node: Any) -> str:
    """An operator and where it stands."""
    place = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} (node {place!r})"


# ---- what an output needs ----------------------------------------------------------------------------------------------------


def used_by(node: Any) -> set[str]:
    """The names a node takes, also those that its graphs take from outside."""
    return set(node.input) | {name for inner in graphs_of(node) for name in _free(inner)}


def _free(graph: Any) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    used = {name for node in graph.node for name in used_by(node)} | {value.name for value in graph.output}
    return used - own


def needed(nodes: Iterable[Any], names: Iterable[str], known: Mapping[str, Any] | None = None) -> list[Any]:
    """The nodes that lead to `names`, in order; what is `known` needs none."""
    there = set(known or ())
    wanted = set(names) - there
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= used_by(node) - there
    return kept[::-1]


def _leading_to(model: Any, output: str) -> Any:
    """The same model with one output, without what that does not need."""
    graph = model.graph
    nodes = needed(graph.node, [output])
    used = {output, *(name for node in nodes for name in used_by(node))}
    found = required("onnx").ModelProto()
    found.ir_version = model.ir_version
    found.opset_import.extend(model.opset_import)
    found.graph.name = graph.name or "graph"
    found.graph.node.extend(nodes)
    found.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in used)
    found.graph.input.extend(value for value in graph.input if value.name in used)
    found.graph.output.extend(value for value in graph.output if value.name == output)
    return found


# ---- functions ---------------------------------------------------------------------------------------------------------------


def _without_functions(model: Any, file: str) -> Any:
    """The same model with the functions of its own written out."""
    bodies = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[Function, int] = {}
    for key in bodies:
        _size(key, bodies, sizes, (), file)
    total = sum(sizes.get((node.domain, node.op_type), 1) for node in _all_nodes(model.graph.node))
    if total > MOST_NODES:
        raise ValueError(f"path: {file}: with its functions written out it has {total:,} nodes; at most {MOST_NODES:,} are read")
    try:
        return required("onnx.inliner").inline_local_functions(model)
    except Exception as error:  # whatever onnx finds wrong
        raise ValueError(f"path: {file}: its functions cannot be written out ({error}); export it without functions") from error


def _size(
    key: Function, bodies: Mapping[Function, Any], sizes: dict[Function, int], within: tuple[Function, ...], file: str
) -> int:
    """How many nodes a function has, with those of the functions it calls."""
    if key in within:
        raise ValueError(f"path: {file}: the function {key[1]!r} calls itself; the file is damaged")
    if key not in sizes:
        called = ((node.domain, node.op_type) for node in _all_nodes(bodies[key].node))
        sizes[key] = sum(_size(each, bodies, sizes, (*within, key), file) if each in bodies else 1 for each in called)
    return sizes[key]


def _all_nodes(nodes: Iterable[Any]) -> Iterable[Any]:
    for node in nodes:
        yield node
        for inner in graphs_of(node):
            yield from _all_nodes(inner.node)


__all__ = ["Program", "checked", "described", "needed", "tensors_of", "used_by"]
