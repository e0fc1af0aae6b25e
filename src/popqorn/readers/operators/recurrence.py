"""Recurrent layers and cells."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popqorn.readers import layers
from popqorn.readers.operators.table import RULES, Rule
from popqorn.readers.recurrent import Cell, Weights, gru, lstm, vanilla
from popqorn.readers.symbols import Symbol, SymbolWriter, Value
from popqorn.relax.activations import RELU, TANH


def _sequence(cell: Cell, states: int) -> Rule:
    def read(
        sheet: SymbolWriter,
        x: Value,
        initial: Any,
        parameters: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Any:
        given = list(initial) if isinstance(initial, list | tuple) else [initial]
        entries = sheet.symbol(x).entries
        batched = entries.dim() == 3
        if not batched:
            entries = entries.unsqueeze(1)
        elif batch_first:
            entries = entries.transpose(0, 1)
        directions = 2 if bidirectional else 1
        per_layer = len(parameters) // (num_layers * directions)
        every = [_weights(parameters[k : k + per_layer], has_biases) for k in range(0, len(parameters), per_layer)]
        stacked = [every[k : k + directions] for k in range(0, len(every), directions)]
        outputs, finals = [], []
        for sample in range(entries.shape[1]):
            own = [
                (state[:, sample] if not isinstance(state, Symbol) else Symbol(state.entries[:, sample])) if batched else state
                for state in given
            ]
            steps, final = layers.recurrent(sheet, cell, stacked, entries[:, sample], own)
            outputs.append(steps.flatten(1))
            finals.append(final)
        whole = torch.stack(outputs, dim=0 if batch_first else 1) if batched else outputs[0]
        ends = [torch.stack(column, dim=1) if batched else column[0] for column in zip(*finals, strict=True)]
        return (Symbol(whole), *map(Symbol, ends))

    return read


def _weights(parameters: Sequence[Tensor], has_biases: bool) -> Weights:
    if has_biases:
        return Weights(*parameters)
    return Weights(parameters[0], parameters[1], None, None, *parameters[2:])


def _step(cell: Cell, states: int) -> Rule:
    def read(sheet: SymbolWriter, x: Value, initial: Any, *parameters: Any) -> Any:
        given = [sheet.symbol(state).entries for state in (initial if isinstance(initial, list | tuple) else [initial])]
        entries = sheet.symbol(x).entries
        batched = entries.dim() == 2
        found = []
        for sample in range(entries.shape[0] if batched else 1):
            before = [sheet.position(state[sample] if batched else state) for state in given]
            after = cell(sheet.writer, Weights(*parameters), sheet.position(entries[sample] if batched else entries), before)
            found.append([sheet.entries(state) for state in after])
        ends = [Symbol(torch.stack(column) if batched else column[0]) for column in zip(*found, strict=True)]
        return tuple(ends) if states > 1 else ends[0]

    return read


for _name, _cell, _states in (("lstm", lstm, 2), ("gru", gru, 1), ("rnn_tanh", vanilla(TANH), 1), ("rnn_relu", vanilla(RELU), 1)):
    RULES[_name] = _sequence(_cell, _states)
    RULES[f"{_name}_cell"] = _step(_cell, _states)
RULES["getitem"] = lambda sheet, value, place: operator.getitem(value, place)
