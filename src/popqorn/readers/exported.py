"""Any `nn.Module`: traced by `torch.export` for every length of sequence, its graph written as a tape."""

import operator
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx import Node as GraphNode

from popqorn.readers import operators
from popqorn.readers.calls import Call, embedding_of, first_tensor, in_eval_mode, plain_packing
from popqorn.readers.network import LEFT_OFF, Network, Reading
from popqorn.readers.symbols import Symbol, SymbolWriter
from popqorn.sequences import Sequences, are_tokens, read_samples, read_tokens

IGNORED = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size")


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """A module of the user's own. It is run and traced in eval mode, and left as it was."""

    module: nn.Module

    def sequences(self, inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
        if any(isinstance(part, nn.Embedding) for part in self.module.modules()) and are_tokens(inputs):
            groups = read_tokens(inputs, lengths)
            table = embedding_of(self.module, _tokens(groups[0])[:1]).weight.detach().to(dtype)
            return [group.with_vectors(table) for group in groups]
        return read_samples(inputs, lengths, dtype)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()

    def reading(self, group: Sequences, *, decides: bool) -> Reading:
        call = Call(self.module, group)
        program = exported(call)
        at_inputs = call.own_at(group)
        shape, axis = call.output_shape()
        sheet = SymbolWriter(group.frames, group.values.shape[2], dtype=group.values.dtype, device=group.values.device)
        output, left_off = written(sheet, program, (1, *call.sample), decides=decides)
        entries = output.entries if axis is None else output.entries.movedim(axis, 0)
        tape = sheet.finish(Symbol(entries), tuple(size for place, size in enumerate(shape) if place != axis) or (1,))
        name, dim = left_off or (None, -1)
        return Reading(tape, at_inputs, call.own, call.dtype, name, dim if axis is None or dim > axis else dim + 1)


def exported(call: Call) -> ExportedProgram:
    """The program of a module for one sample."""
    with in_eval_mode(call.module), plain_packing(call.module), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(call, (call.example(1),), strict=False)
        except Exception as error:  # whatever tracing a stranger's code may raise
            raise TypeError(
                f"model: torch.export cannot trace it ({_first_line(error)}); branches and loops must not depend on values, "
                "only on shapes"
            ) from error
    if any(_changes_its_operands(node) for node in program.graph.nodes):
        program = program.run_decompositions({})
    return program


def _changes_its_operands(node: GraphNode) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def written(
    sheet: SymbolWriter, program: ExportedProgram, shape: tuple[int, ...], *, decides: bool
) -> tuple[Symbol, tuple[str, int] | None]:
    """Write a program onto a tape. Returns its (first) output, and the softmax that was left off, with its axis."""
    inputs = sheet.inputs(shape)
    decomposed: set[str] = set()
    while True:
        try:
            return _Interpreter(sheet, program).run(inputs, decides=decides)
        except _UnknownError as unknown:
            table = torch.export.default_decompositions()
            target = unknown.node.target
            if target not in table or str(target) in decomposed:
                raise unknown.refusal() from None
            decomposed.add(str(target))
            program = program.run_decompositions({target: table[target]})


class _UnknownError(Exception):
    """An operator without a rule."""

    def __init__(self, node: GraphNode, name: str, reason: str) -> None:
        super().__init__(name)
        self.node, self.name, self.reason = node, name, reason

    def refusal(self) -> TypeError:
        what = self.reason if " " in self.reason else f"the operator {self.name}"
        return TypeError(f"model: cannot read {what}{_where(self.node)}; popqorn.supported_operations() lists what can be read")


class _Interpreter:
    """Runs a program with symbols in the place of its inputs."""

    def __init__(self, sheet: SymbolWriter, program: ExportedProgram) -> None:
        self.sheet = sheet
        self.program = program

    def run(self, inputs: Symbol, *, decides: bool) -> tuple[Symbol, tuple[str, int] | None]:
        signature = self.program.graph_signature
        state = {**self.program.state_dict, **self.program.constants}
        names = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        given: dict[str, Any] = {key: _double(state[name]) for key, name in names.items()}
        for name in signature.user_inputs:
            given[str(name)] = inputs
        values = self._run(self.program.graph_module, given)
        (output,) = (node for node in self.program.graph.nodes if node.op == "output")
        result = _first_node(output.args[0])
        last = _settled(result)
        name = operators.name_of(last.target).lstrip("_") if last.op == "call_function" else ""
        before = values.get(last.args[0]) if name in LEFT_OFF else None  # type: ignore[arg-type]
        if decides and isinstance(before, Symbol):
            return before, (name, operator.index(last.args[1]) % max(1, before.entries.dim()))  # type: ignore[arg-type]
        found = values[result]
        if not isinstance(found, Symbol):
            raise ValueError("model: its output does not depend on the inputs; there is nothing to certify")
        return found, None

    def _run(self, module: GraphModule, given: dict[str, Any]) -> dict[GraphNode, Any]:
        """The value of every node of a graph."""
        values: dict[GraphNode, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = given[node.name] if node.name in given else given[node.target]
            elif node.op == "get_attr":
                found = operator.attrgetter(node.target)(module)
                values[node] = _double(found) if isinstance(found, Tensor) else found
            elif node.op == "call_function":
                values[node] = self._call(node, values)
        return values

    def _call(self, node: GraphNode, values: dict[GraphNode, Any]) -> Any:
        arguments: Any = torch.fx.node.map_arg(node.args, values.__getitem__)
        options: Any = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
        target: Any = node.target
        name = operators.name_of(node.target)
        if name in IGNORED:
            return None
        graphs = [each for each in arguments if isinstance(each, GraphModule)]
        if graphs:
            return self._inner(node, graphs[0], arguments[arguments.index(graphs[0]) + 1 :])
        try:
            return operators.apply(self.sheet, name, target, arguments, options)
        except LookupError as missing:
            raise _UnknownError(node, str(node.target), str(missing).strip("'\"")) from missing
        except (ValueError, TypeError, RuntimeError, AssertionError, AttributeError) as error:
            raise _UnknownError(node, str(node.target), f"{node.target} with these arguments ({_first_line(error)})") from error

    def _inner(self, node: GraphNode, graph: GraphModule, arguments: tuple[Any, ...]) -> Any:
        """A block that torch keeps as a graph of its own, such as one under `torch.no_grad()`."""
        if not operators.name_of(node.target).startswith("wrap_with_"):
            raise _UnknownError(node, str(node.target), f"{node.target}: a branch or loop that depends on values")
        places = [inner.name for inner in graph.graph.nodes if inner.op == "placeholder"]
        values = self._run(graph, dict(zip(places, arguments, strict=True)))
        (output,) = (inner for inner in graph.graph.nodes if inner.op == "output")
        return torch.fx.node.map_arg(output.args[0], values.__getitem__)


def _tokens(group: Sequences) -> Tensor:
    assert group.tokens is not None
    return group.tokens


def _double(tensor: Tensor) -> Tensor:
    """A known tensor as reading computes with it."""
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def _first_node(outputs: Any) -> GraphNode:
    node = first_tensor(outputs, GraphNode)
    assert isinstance(node, GraphNode)
    return node


def _settled(node: GraphNode) -> GraphNode:
    """The operator behind copies."""
    while node.op == "call_function" and operators.name_of(node.target) in ("clone", "alias", "contiguous", "detach"):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _where(node: GraphNode) -> str:
    """The line of the user's source that asks for an operator."""
    lines = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', str(node.meta.get("stack_trace", "")))
    own = [line for line in lines if "/torch/" not in line[0] and "popqorn/readers" not in line[0]]
    if not own:
        return ""
    file, number, _, source = own[-1]
    return f", at {file}:{number}: {source.strip()}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
