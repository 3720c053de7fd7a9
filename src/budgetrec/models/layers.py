"""The layers of a transformer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from budgetrec.errors import ArgumentError
from budgetrec.models.activations import ACTIVATIONS
from budgetrec.models.item_encoders import FeatureEncoder
from budgetrec.models.specification import NORMS, check_dropout, check_heads
from budgetrec.options import check_choice


class Dropout(nn.Module):
    """Dropout that draws one byte per entry from its own generator.

    torch's version draws from a global generator and takes five times as long on a CPU: here one 64-bit draw
    serves eight entries. The rate is rounded to a multiple of 1/256, and the kept entries are scaled by the
    rounded rate, so the mean is exact.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        check_dropout(rate)
        self.threshold = round(rate * 256)
        self.generator: torch.Generator | None = None  # set by `seed_dropout`; torch's global one otherwise

    def forward(self, x: Tensor) -> Tensor:
        """Set about `rate` of the entries to zero during training."""
        if not self.training or self.threshold == 0:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        words.random_(-(2**63), None, generator=self.generator)
        # Comparing in place keeps bytes, since boolean kernels take four times as long on a CPU.
        kept = words.view(torch.uint8)[: x.numel()].ge_(self.threshold).view_as(x)
        dropped: Tensor = _Keep.apply(x, kept, 256 / (256 - self.threshold))  # type: ignore[no-untyped-call]
        return dropped

    def extra_repr(self) -> str:
        """Show the rounded rate."""
        return f"rate={self.threshold / 256:.4g}"


class _Keep(torch.autograd.Function):
    """Scale the kept entries. Backward needs one byte per entry."""

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
    """Make every dropout layer in `module` draw from `generator`."""
    for part in module.modules():
        if isinstance(part, Dropout):
            part.generator = generator


class Attention(nn.Module):
    """Multi-head attention through torch's fused kernels.

    Sequences are padded on the right, so a causal mask already hides the padding from every real position.
    """

    def __init__(self, dim: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.causal = causal
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, queries: Tensor, values: Tensor, mask: Tensor, *, last: bool = False) -> Tensor:
        """Attend from queries (n, w, d) to the positions of values (n, w, d) that they may see.

        If `last`, queries are (n, 1, d), the last real positions, which may see every real position.
        """
        causal = self.causal and not last
        query = self.query(queries).view(*queries.shape[:2], self.num_heads, -1).transpose(1, 2)
        both = self.key_value(values).view(*values.shape[:2], 2, self.num_heads, -1)
        key, value = both.transpose(1, 3).unbind(2)  # (n, heads, w, d / heads), as query
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=None if causal else mask[:, None, None], is_causal=causal
        )
        joined: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return joined


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection.

    `norm` is "pre" (both layers read normalised input, the residual is not normalised) or "query" (as SASRec
    was published: only the query is normalised, and it is also the residual of attention).
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
        check_choice("activation", activation, tuple(ACTIVATIONS))
        check_choice("norm", norm, NORMS)
        self.pre_norm = norm == "pre"
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, num_heads, causal=causal)
        self.forward_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, hidden_dim)
        self.narrow = nn.Linear(hidden_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the output (n, w, d)."""
        normal = self.attention_norm(x)
        residual, values = (x, normal) if self.pre_norm else (normal, x)
        return self._feed(residual + self.dropout(self.attention(normal, values, mask)))

    def forward_last(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the output at the last real positions, (n, 1, d), which is all that a prediction needs."""
        last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[2])
        normal = self.attention_norm(x)
        residual, values = (x, normal) if self.pre_norm else (normal, x)
        attended = self.attention(normal.gather(1, last), values, mask, last=True)
        return self._feed(residual.gather(1, last) + attended)

    def _feed(self, x: Tensor) -> Tensor:
        normal = self.forward_norm(x)
        wide = self.dropout(self.activation(self.widen(normal)))
        fed: Tensor = (x if self.pre_norm else normal) + self.dropout(self.narrow(wide))
        return fed


class Encoder(nn.Module):
    """Positions, dropout, blocks and a final normalisation: item vectors (n, w, d) in, states out."""

    def __init__(self, blocks: Sequence[Block], dim: int, *, num_positions: int, dropout: float) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(num_positions, dim))
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
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
        assert isinstance(final, Block)  # noqa: S101 - for the type checker
        states: Tensor = self.last_norm(final.forward_last(x, mask))
        return states.squeeze(1)

    def _begin(self, vectors: Tensor) -> Tensor:
        width = vectors.shape[1]
        if width > len(self.positions):
            raise ArgumentError(
                f"sequences have {width} positions and the model has {len(self.positions)}; "
                "pass at most max_length items."
            )
        started: Tensor = self.dropout(vectors + self.positions[:width])
        return started


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights from `generator`: Xavier matrices, small tables, zero biases, identity norms.

    Item vectors made from features start about as small as those of a table, so that all items are about
    equally likely at first.
    """
    # `modules` lists a module before its parts; reversed, a feature encoder is scaled after they are drawn.
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
