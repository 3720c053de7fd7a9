"""The parts that SASRec and BERT4Rec are made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from budgetrec.errors import ArgumentError
from budgetrec.models.activations import ACTIVATIONS
from budgetrec.models.item_encoders import FeatureEncoder

NORMS = ("pre", "query")


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own, one byte a number.

    torch's own draws from a global generator, and on a CPU takes five times as long: one number of its
    generator serves eight entries here. The rate is rounded to a multiple of 1/256, and what is kept is
    scaled by the rounded rate, so the mean is exact.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ArgumentError(f"dropout is {rate}; pass a share of at least 0 and below 1.")
        self.threshold = round(rate * 256)
        self.generator: torch.Generator | None = None  # set by `seed_dropout`; else torch's global one

    def forward(self, x: Tensor) -> Tensor:
        """Set about `rate` of the numbers to zero while training."""
        if not self.training or self.threshold == 0:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        words.random_(-(2**63), None, generator=self.generator)
        # Compared in place, bytes stay bytes: kernels for booleans take four times as long on a CPU.
        kept = words.view(torch.uint8)[: x.numel()].ge_(self.threshold).view_as(x)
        dropped: Tensor = _Keep.apply(x, kept, 256 / (256 - self.threshold))  # type: ignore[no-untyped-call]
        return dropped

    def extra_repr(self) -> str:
        """Show the rate as it is applied."""
        return f"rate={self.threshold / 256:.4g}"


class _Keep(torch.autograd.Function):
    """Scale what is kept; a byte a number is saved for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (x * kept).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return (grad * kept).mul_(ctx.scale), None, None


def seed_dropout(module: nn.Module, generator: torch.Generator) -> None:
    """Let every dropout in `module` draw from `generator`."""
    for part in module.modules():
        if isinstance(part, Dropout):
            part.generator = generator


class Attention(nn.Module):
    """Multi-head attention through torch's fused kernels.

    Sequences are padded on the right, so a causal mask hides padding from every real position, and no mask
    of the padding is needed there.
    """

    def __init__(self, dim: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ArgumentError(
                f"dim is {dim} and num_heads {num_heads}; pass a number of heads that divides the width."
            )
        self.num_heads = num_heads
        self.causal = causal
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, queries: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend from every position of queries (n, w, d) to those of values (n, w, d) that it may see."""
        query = self._heads(self.query(queries))
        key, value = self._keys_and_values(values)
        hidden = None if self.causal else mask[:, None, None]
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=hidden, is_causal=self.causal
        )
        return self._join(attended)

    def forward_last(self, queries: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend from one position each, queries (n, 1, d), that comes last and so may see all of values."""
        query = self._heads(self.query(queries))
        key, value = self._keys_and_values(values)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return self._join(attended)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = self.key_value(x).view(*x.shape[:2], 2, self.num_heads, -1)  # (n, w, 2, heads, d / heads)
        key, value = both.transpose(1, 3).unbind(2)
        return key, value

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)  # (n, heads, w, d / heads)

    def _join(self, x: Tensor) -> Tensor:
        joined: Tensor = self.output(x.transpose(1, 2).flatten(2))
        return joined


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual.

    `norm` is "pre" (both read normalised input, the residual is not normalised) or "query" (as SASRec was
    published: only the query is normalised, and the residual of attention starts from it).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        hidden_dim: int,
        dropout: float,
        activation: str,
        norm: str,
        causal: bool,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"activation is {activation!r}; pass one of {', '.join(ACTIVATIONS)}.")
        if norm not in NORMS:
            raise ArgumentError(f"norm is {norm!r}; pass one of {', '.join(NORMS)}.")
        self.norm = norm
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, num_heads, causal=causal)
        self.forward_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, hidden_dim)
        self.narrow = nn.Linear(hidden_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next layer's (n, w, d)."""
        normal = self.attention_norm(x)
        if self.norm == "pre":
            return self._feed(x + self.dropout(self.attention(normal, normal, mask)))
        return self._feed(normal + self.dropout(self.attention(normal, x, mask)))

    def forward_last(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next layer's last positions only, (n, 1, d): all that a prediction needs of it."""
        last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[2])
        normal = self.attention_norm(x)
        query = normal.gather(1, last)
        if self.norm == "pre":
            return self._feed(x.gather(1, last) + self.attention.forward_last(query, normal, mask))
        return self._feed(query + self.attention.forward_last(query, x, mask))

    def _feed(self, x: Tensor) -> Tensor:
        normal = self.forward_norm(x)
        wide = self.dropout(self.activation(self.widen(normal)))
        fed: Tensor = (x if self.norm == "pre" else normal) + self.dropout(self.narrow(wide))
        return fed


class Encoder(nn.Module):
    """Positions, dropout, blocks and a last normalisation: item vectors (n, w, d) in, states out."""

    def __init__(
        self,
        dim: int,
        *,
        num_blocks: int,
        num_heads: int,
        num_positions: int,
        hidden_dim: int | None,
        dropout: float,
        activation: str,
        norm: str,
        causal: bool,
    ) -> None:
        super().__init__()
        for name, value in (("dim", dim), ("num_blocks", num_blocks), ("num_positions", num_positions)):
            if value < 1:
                raise ArgumentError(f"{name} is {value}; pass at least 1.")
        self.positions = nn.Parameter(torch.empty(num_positions, dim))
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                num_heads,
                hidden_dim=hidden_dim or dim,
                dropout=dropout,
                activation=activation,
                norm=norm,
                causal=causal,
            )
            for _ in range(num_blocks)
        )
        self.last_norm = nn.LayerNorm(dim)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, w, d)."""
        x = self._begin(vectors)
        for block in self.blocks:
            x = block(x, mask)
        states: Tensor = self.last_norm(x)
        return states

    def forward_last(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return the states (n, d) at the last real position of each sequence."""
        x = self._begin(vectors)
        *early, final = self.blocks
        for block in early:
            x = block(x, mask)
        assert isinstance(final, Block)  # noqa: S101
        states: Tensor = self.last_norm(final.forward_last(x, mask))
        return states.squeeze(1)

    def _begin(self, vectors: Tensor) -> Tensor:
        width = vectors.shape[1]
        if width > len(self.positions):
            raise ArgumentError(
                f"sequences have {width} positions and the model {len(self.positions)}; pass at most "
                "max_length items."
            )
        started: Tensor = self.dropout(vectors + self.positions[:width])
        return started


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights from `generator`: matrices by Xavier, tables small, biases 0, norms the identity.

    Item vectors made from features start about as small as those of a table, so that every item is about as
    likely as any other at first.
    """
    # A module comes before its parts, so features are scaled once the others are drawn.
    for part in reversed(list(module.modules())):
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
            continue
        for name, parameter in part.named_parameters(recurse=False):
            if name == "bias":
                nn.init.zeros_(parameter)
            elif isinstance(part, nn.Linear):
                nn.init.xavier_normal_(parameter, generator=generator)
            else:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        if isinstance(part, FeatureEncoder):
            with torch.no_grad():
                part.narrow.weight.mul_(0.02 / part.table().std())
