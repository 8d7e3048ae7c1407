"""A transformer encoder over the last rows (Vaswani et al. 2017; layer norm first, as in Xiong et al. 2020)."""

import torch
from torch import nn
from torch.nn import functional

LAYERS = 5
WINDOW = 32
"""Number of rows that the network sees: the sample's own and the 31 before it."""


class Embedding(nn.Module):
    """[batch, window, inputs] -> [batch, window, embedding], with a learned vector per place in the window."""

    def __init__(self, inputs: int, embedding: int, window: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, embedding)
        self.place = nn.Parameter(torch.randn(window, embedding) * 0.02)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows as vectors that encode their place."""
        embedded: torch.Tensor = self.project(rows) + self.place
        return embedded


class EncoderLayer(nn.Module):
    """Self-attention with `heads` heads, then a ReLU network of `hidden` units; both add to the rows."""

    def __init__(self, embedding: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(embedding)
        self.query_key_value = nn.Linear(embedding, 3 * embedding)
        self.merge = nn.Linear(embedding, embedding)
        self.hidden_norm = nn.LayerNorm(embedding)
        self.hidden = nn.Sequential(nn.Linear(embedding, hidden), nn.ReLU(), nn.Linear(hidden, embedding))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [batch, window, embedding], after one round of attention."""
        batch, window, embedding = rows.shape
        split = self.query_key_value(self.attention_norm(rows)).view(batch, window, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        rows = rows + self.merge(attended.transpose(1, 2).reshape(batch, window, embedding))
        out: torch.Tensor = rows + self.hidden(self.hidden_norm(rows))
        return out

    def last_row(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [batch, 1, embedding]: the last row of what `forward` returns, to rounding.

        The other rows are not computed.
        """
        batch, window, embedding = rows.shape
        normed, last = self.attention_norm(rows), rows[:, -1:]
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        query = functional.linear(normed[:, -1:], weight[:embedding], bias[:embedding])
        both = functional.linear(normed, weight[embedding:], bias[embedding:])
        key, value = both.view(batch, window, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        query = query.view(batch, 1, self.heads, -1).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(query, key, value)
        last = last + self.merge(attended.transpose(1, 2).reshape(batch, 1, embedding))
        out: torch.Tensor = last + self.hidden(self.hidden_norm(last))
        return out


class LogitHead(nn.Module):
    """One logit per sample, [batch, 1], from the last row of [batch, window, embedding]."""

    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embedding)
        self.layers = nn.Sequential(
            nn.Linear(embedding, hidden), nn.ReLU(), nn.Linear(hidden, embedding), nn.ReLU(), nn.Linear(embedding, 1)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logit."""
        logit: torch.Tensor = self.layers(self.norm(rows[:, -1]))
        return logit


def attention_layers(inputs: int, embedding: int, heads: int, hidden: int) -> list[nn.Module]:
    """Return the layers of the encoder from [batch, 32, inputs] to one logit per sample, [batch, 1]."""
    blocks = [EncoderLayer(embedding, heads, hidden) for _ in range(LAYERS)]
    return [Embedding(inputs, embedding, WINDOW), *blocks, LogitHead(embedding, hidden)]
