"""Any `nn.Module`: traced by `torch.export` for every length of sequence, its graph written as a tape."""

import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule
from torch.fx import Node as GraphNode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.proxy import TracerBase

from popqorn.readers import calls, operators
from popqorn.readers.calls import Call, alike, first_tensor, plain_packing, vectors_of
from popqorn.readers.network import LEFT_OFF, Network, Reading
from popqorn.readers.symbols import Symbol, SymbolWriter
from popqorn.readers.taught import standing_in
from popqorn.readers.untouched import untouched
from popqorn.sequences import Sequences, are_tokens, read_samples, read_tokens
from popqorn.tape.tape import Tape

RESHAPES = ("alias", "clone", "contiguous", "detach", "flatten", "reshape", "squeeze", "unflatten", "unsafe_view", "view")
NEW = ("batch_norm", "conv1d", "conv2d", "conv3d", "group_norm", "instance_norm", "layer_norm", "linear", "matmul")
FOREIGN = re.compile(r"^<|[\\/](torch|popqorn[\\/]readers|python3\.\d+)[\\/](?!site-packages)")
IGNORED = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size", "_set_grad_enabled")


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """A module of the user's own. It is run and traced in eval mode, and left as it was."""

    module: nn.Module

    def sequences(self, inputs: Any, lengths: Any, dtype: torch.dtype) -> list[Sequences]:
        if any(isinstance(part, nn.Embedding) for part in self.module.modules()) and are_tokens(inputs):
            groups = read_tokens(inputs, lengths)
            table = vectors_of(self.module, _tokens(groups[0])[:1]).to(dtype)
            return [part for group in groups for part in alike(self.module, group.with_vectors(table))]
        return read_samples(inputs, lengths, dtype)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()

    def reading(self, group: Sequences, *, decides: bool) -> Reading:
        call = Call(self.module, group)
        shape, axis = call.output_shape
        at_inputs = call.own_at(group)
        program = exported(call)
        sheet = SymbolWriter(group.frames, group.values.shape[2], dtype=group.values.dtype, device=group.values.device)
        with torch.device("cpu"), torch.no_grad():  # where reading keeps the numbers of entries
            # a softmax over the batch, the last axis here, is none that leaves decisions as they are
            output, left_off = written(sheet, program, (1, *call.sample), decides=decides and axis != len(shape) - 1)
            entries = output.entries if axis is None else output.entries.movedim(axis, 0)
            tape = sheet.finish(Symbol(entries), tuple(size for place, size in enumerate(shape) if place != axis) or (1,))
        call.check_runs_are_alike()
        call.check_samples_are_apart()
        return Reading(tape, at_inputs, call.own, call.dtype, left_off)

    def live(self, group: Sequences) -> Tape:
        """Traced once for every shape: a step of training writes what was traced once more, with the weights of that step."""
        traced = _TRACED.setdefault(self.module, {})
        if group.sample not in traced:
            call = Call(self.module, group)
            traced[group.sample] = exported(call), call.output_shape[1]
        program, axis = traced[group.sample]
        weights = {f"module.{name}": tensor for name, tensor in self.tensors()}
        options: dict[str, Any] = {"dtype": group.values.dtype, "device": group.values.device, "live": True}
        sheet = SymbolWriter(group.frames, group.values.shape[2], **options)
        with torch.device("cpu"):
            output, _ = written(sheet, program, (1, *group.sample), decides=True, weights=weights)
            entries = output.entries if axis is None else output.entries.movedim(axis, 0)
            return sheet.finish(Symbol(entries), (entries.numel(),))


_TRACED: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[ExportedProgram, int | None]]] = WeakKeyDictionary()


def exported(call: Call) -> ExportedProgram:
    """The program of a module for one sample."""
    with untouched(call.module), plain_packing(call.module), standing_in(call.module), torch.no_grad(), _quiet(), _own_lines():
        example = call.example(1)
        traced: nn.Module = call
        try:
            if any(isinstance(part, torch.jit.ScriptModule) for part in call.modules()):
                traced = make_fx(call, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)(example)
            program = torch.export.export(traced, (example,), strict=False)
            if any(_changes_its_operands(node) and not _changes_unseen(node) for node in _nodes(program)):
                program = _decomposed(program, {})
        except Exception as error:  # whatever tracing a stranger's code may raise
            raise TypeError(
                f"model: torch.export cannot trace it ({_first_line(error)}){_place(error)}; {_remedy(error)}"
            ) from error
    return program


def _nodes(program: ExportedProgram) -> Iterator[GraphNode]:
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule):
            yield from part.graph.nodes


def _decomposed(program: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    """The same with the operators of a table in terms of others, and none that changes its operands."""
    with _quiet():
        found: ExportedProgram = program.run_decompositions(table)
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings and pictures of graphs, about itself and about how it traces."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _own_lines() -> Iterator[None]:
    """torch remembers the lines of `forward` alone: while this lasts, those of the functions that it calls as well."""
    name = "_filter_traceback_frames"
    before = vars(TracerBase).get(name)
    if before is None:  # another version of torch: lines are those of `forward`
        yield
        return

    def own(_: TracerBase, frames: traceback.StackSummary) -> traceback.StackSummary:
        start = max((place for place, frame in enumerate(frames) if frame.filename == calls.__file__), default=-1)
        return traceback.StackSummary.from_list([each for each in frames[start + 1 :] if not FOREIGN.search(each.filename)])

    setattr(TracerBase, name, own)
    try:
        yield
    finally:
        setattr(TracerBase, name, before)


def _changes_its_operands(node: GraphNode) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_operator(target: Any) -> bool:
    """Whether a function computes something and does nothing else: those of torch.vmap leave the process in another state."""
    if isinstance(target, OpOverload | HigherOrderOperator):
        return True
    return getattr(target, "__module__", None) in ("_operator", "math") or getattr(target, "__name__", "").startswith("sym_")


def _changes_unseen(node: GraphNode) -> bool:
    """Whether an operator changes a new tensor that nobody else sees, such as a ReLU behind a layer: it may as well copy it."""
    source, name = node.args[0], operators.name_of(node.target)
    if not isinstance(source, GraphNode) or source.op != "call_function" or name.removesuffix("_") not in operators.names():
        return False
    return operators.name_of(source.target) in NEW and list(source.users) == [node]


def written(
    sheet: SymbolWriter,
    program: ExportedProgram,
    shape: tuple[int, ...],
    *,
    decides: bool,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Symbol, str | None]:
    """Write a program onto a tape. Returns its (first) output, and the softmax over the last axis that was left off.

    `weights` are those of today, by name, if they are no longer the ones that it was traced with.
    """
    inputs = sheet.inputs(shape)
    asked_for = {node.target for node in program.graph.nodes}
    decomposed: dict[Any, _UnknownError] = {}
    while True:
        try:
            return _Interpreter(sheet, program, weights or {}).run(inputs, decides=decides)
        except _UnknownError as unknown:
            table = torch.export.default_decompositions()
            target = unknown.node.target
            if target not in table or target in decomposed:
                # what no user has written is a part of something that was
                whole = next((each for each in decomposed.values() if _where(each.node) == _where(unknown.node)), unknown)
                raise (unknown if target in asked_for else whole).refusal() from None
            decomposed[target] = unknown
            program = _decomposed(program, {target: table[target]})


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

    def __init__(self, sheet: SymbolWriter, program: ExportedProgram, today: Mapping[str, Tensor]) -> None:
        self.sheet = sheet
        self.program = program
        self.today = today
        self.left_off: GraphNode | None = None

    def run(self, inputs: Symbol, *, decides: bool) -> tuple[Symbol, str | None]:
        signature = self.program.graph_signature
        state = {**self.program.state_dict, **self.program.constants, **self.today}
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        given: dict[str, Any] = {key: _double(state[name]) for key, name in weights.items()}
        given |= {key: _double(state[name]) for key, name in signature.inputs_to_lifted_tensor_constants.items()}
        for name in signature.user_inputs:
            given[str(name)] = inputs
        result = _user_output(self.program)
        self.left_off = _final_softmax(result) if decides else None
        values = self._run(self.program.graph_module, given)
        found = values[result]
        if found is operators.NO_INDEX:
            raise _UnknownError(result, str(result.target), "the place of a maximum, as it jumps")
        if not isinstance(found, Symbol):
            raise ValueError(
                "model: its (first) output does not depend on the inputs, there is nothing to certify; pass a model that returns "
                "what it makes of them first"
            )
        return found, None if self.left_off is None else operators.name_of(self.left_off.target).lstrip("_")

    def _run(self, module: GraphModule, given: dict[str, Any]) -> dict[GraphNode, Any]:
        """The value of every node of a graph."""
        values: dict[GraphNode, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = given.get(node.name, given.get(str(node.target)))
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
        name = name.removesuffix("_") if _changes_its_operands(node) else name
        if name in IGNORED:
            return None
        if not _is_operator(target):
            raise _UnknownError(node, name, f"torch.vmap or another function of functions ({name})")
        if node is self.left_off:
            return arguments[0]
        if name == "rms_norm" and len(arguments) < 4 and "eps" not in options:
            options = {**options, "eps": torch.finfo(node.meta["val"].dtype).eps}  # torch's default
        graphs = [each for each in arguments if isinstance(each, GraphModule)]
        if graphs:
            return self._inner(node, graphs[0], arguments[arguments.index(graphs[0]) + 1 :])
        try:
            return operators.apply(self.sheet, name, target, arguments, options)
        except LookupError as missing:
            raise _UnknownError(node, str(node.target), str(missing.args[0]) if missing.args else "") from missing
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
    tensor = tensor.cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def _user_output(program: ExportedProgram) -> GraphNode:
    """The node of the first tensor that the module returns; what it writes to its input and its buffers is listed beside it."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    listed = zip(program.graph_signature.output_specs, output.args[0], strict=True)
    node = first_tensor([value for spec, value in listed if spec.kind is OutputKind.USER_OUTPUT], GraphNode)
    assert isinstance(node, GraphNode)
    return node


def _final_softmax(result: GraphNode) -> GraphNode | None:
    """The softmax over the last axis that the output is, perhaps behind changes of shape that leave this axis alone."""
    node, classes = result, result.meta["val"].shape[-1:]
    while node.op == "call_function":
        name = operators.name_of(node.target).lstrip("_")
        source = node.args[0] if node.args else None
        if name not in (*LEFT_OFF, *RESHAPES) or not isinstance(source, GraphNode):
            return None
        shape = source.meta["val"].shape
        if shape[-1:] != classes:
            return None
        if name in LEFT_OFF:
            return node if node.args[1] in (-1, len(shape) - 1) else None
        node = source
    return None


def _where(node: GraphNode) -> str:
    """The line of the user's source that asks for an operator."""
    lines = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', str(node.meta.get("stack_trace", "")))
    return _line((file, number, source) for file, number, source in lines)


def _place(error: BaseException) -> str:
    """The line of the user's source that raised an error."""
    return _line((frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__))


def _line(lines: Iterable[tuple[str, Any, str | None]]) -> str:
    """The last of some lines that is neither torch's nor Python's nor ours."""
    own = [line for line in lines if not FOREIGN.search(line[0])]
    if not own:
        return ""
    file, number, source = own[-1]
    return f", at {file}:{number}: {(source or '').strip()}"


def _remedy(error: BaseException) -> str:
    if "data-dependent" in str(error):
        return "branches, loops, indices and shapes must not depend on values: write it with operations on tensors"
    if "is mutated in the forward" in str(error):
        return "keep what forward writes to in a buffer (register_buffer)"
    return "pass the plain module it was made from, made of torch's operations on tensors"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
