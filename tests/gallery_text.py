"""Modules that take token ids, as people write them."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

HIDDEN, CLASSES, WORDS = 5, 3, 12


class TextClassifier(nn.Module):
    """Packed, with the maximum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 4, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, text: Tensor, text_lengths: Tensor) -> Tensor:
        embedded = self.dropout(self.embedding(text))
        packed = pack_padded_sequence(embedded, text_lengths.to("cpu"), batch_first=True, enforce_sorted=False)
        packed_output, _ = self.lstm(packed)
        output, _ = pad_packed_sequence(packed_output, batch_first=True)
        return self.fc(self.dropout(output.max(dim=1)[0]))


class SentimentFinal(nn.Module):
    """Time first; the final states of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 4)
        self.rnn = nn.GRU(4, 4, num_layers=2, bidirectional=True)
        self.out = nn.Linear(8, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens.t()), lengths, enforce_sorted=False)
        _, hidden = self.rnn(packed)
        return self.out(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))


class MaskedMean(nn.Module):
    """Positions of padding are left out of the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 4, padding_idx=0)
        self.rnn = nn.RNN(4, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        mask = (tokens != 0).unsqueeze(-1)
        states, _ = self.rnn(self.embed(tokens))
        pooled = states.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        return {"logits": self.out(pooled), "states": states}


class LastWord(nn.Module):
    """The state behind the last word, found by the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 4)
        self.lstm = nn.LSTM(4, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids: Tensor, seq_lens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(ids))
        mask = torch.arange(ids.size(1))[None, :] < seq_lens[:, None]
        states = torch.where(mask[:, :, None], states, torch.zeros_like(states))
        last = states.gather(1, (seq_lens - 1).view(-1, 1, 1).expand(-1, 1, HIDDEN)).squeeze(1)
        return self.out(last + states[torch.arange(len(ids)), seq_lens - 1])


class LanguageModel(nn.Module):
    """The next word at every step, with the embedding's weights in the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(WORDS, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.decoder = nn.Linear(HIDDEN, WORDS, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, hidden = self.rnn(self.encoder(tokens), hidden)
        return F.log_softmax(self.decoder(out), dim=-1), hidden
