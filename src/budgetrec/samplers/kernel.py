"""Adaptive draws: items whose logit is far from zero are drawn more often."""

import math

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.samplers.contract import (
    Negatives,
    Sampler,
    check_num_items,
    check_num_negatives,
    check_targets,
)

# Gathered tree nodes of one step stay below this.
_BLOCK_BYTES = 64 * 2**20


class QuadraticKernel:
    r"""Draws class $j$ with $q_j \propto \alpha \langle h, w_j \rangle^2 + 1$ (Blanc and Rendle, ICML 2018).

    The kernel is linear in $w w^\top$, so the mass of a set of items is $\langle A, \sum_j w_j w_j^\top
    \rangle$ plus its size, with $A = \alpha\, h h^\top$. A binary tree holds these sums; a draw walks down
    from the widest level that has at most $k$ nodes, then picks inside a leaf by the exact kernel. For a
    group of targets $A$ is the mean of theirs, so $q$ stays exact for shared draws too. A walk costs $O(d^2
    \log K)$; leaves hold about $d$ items, so the tree takes about twice the memory of the item table. The
    sampler keeps its own copy of the table: call `update` after a step with the rows that changed.

    >>> table = torch.tensor([[1.0], [0.0], [3.0]])
    >>> sampler = QuadraticKernel(table, 2, alpha=1.0).given(torch.tensor([[[1.0]]]))  # masses 2, 1, 10
    >>> sampler.draw(torch.tensor([[2]]), torch.Generator().manual_seed(0)).log_q_targets.exp()
    tensor([[0.7692]])
    """

    refresh_steps = 100  # while training: an update of all sums costs about as much as a few steps

    def __init__(self, table: Tensor, num_negatives: int, *, alpha: float = 100.0) -> None:
        if table.dim() != 2:
            raise ArgumentError(
                f"the table has shape {tuple(table.shape)}; pass one vector per item, (items, dim)."
            )
        if not alpha > 0:
            raise ArgumentError(f"alpha is {alpha}; the quadratic kernel needs a positive one, such as 100.")
        self.num_items = check_num_items(table.shape[0])
        self.num_negatives = check_num_negatives(num_negatives)
        self.alpha = alpha
        dim = table.shape[1]
        self._leaf_size = max(2, 2 ** math.ceil(math.log2(dim)))
        num_leaves = 2 ** math.ceil(math.log2(math.ceil(self.num_items / self._leaf_size)))
        # Rows behind the last item are zero vectors and count for nothing.
        self._rows = table.new_zeros(num_leaves, self._leaf_size, dim)
        self._present = torch.arange(num_leaves * self._leaf_size, device=table.device) < self.num_items
        self._present = self._present.view(num_leaves, self._leaf_size)
        self._sums: list[Tensor] = []  # from the leaves (C, d, d) up to the root (1, d, d)
        self._sizes: list[Tensor] = [self._present.sum(1).to(table.dtype)]
        while len(self._sizes[-1]) > 1:
            self._sizes.append(self._sizes[-1].view(-1, 2).sum(1))
        self._sums = [table.new_zeros(len(sizes), dim, dim) for sizes in self._sizes]
        self.update(torch.arange(self.num_items, device=table.device), table)

    @torch.no_grad()
    def update(self, ids: Tensor, table: Tensor) -> None:
        """Take in the new vectors of `ids` and repair the sums above them."""
        if table.shape != (self.num_items, self._rows.shape[2]):
            raise ArgumentError(
                f"the table has shape {tuple(table.shape)} but the tree was built for "
                f"{(self.num_items, self._rows.shape[2])}; build a new sampler."
            )
        ids = torch.unique(ids)
        self._rows.view(-1, table.shape[1])[ids] = table.detach()[ids].to(self._rows.dtype)
        nodes = torch.unique(ids // self._leaf_size)
        for block in torch.split(nodes, max(1, _BLOCK_BYTES // (4 * table.shape[1] ** 2))):
            rows = self._rows[block]
            self._sums[0][block] = rows.transpose(1, 2) @ rows
        for below, above in zip(self._sums, self._sums[1:], strict=False):
            nodes = torch.unique(nodes // 2)
            above[nodes] = below[2 * nodes] + below[2 * nodes + 1]

    def refresh(self, table: Tensor) -> None:
        """Take in the vectors (K, d) of all items."""
        self.update(torch.arange(self.num_items), table)

    def state(self) -> dict[str, Tensor]:
        """Return the vectors that draws depend on: those of the last update, not of the table now."""
        return {"vectors": self._rows.flatten(0, 1)[: self.num_items]}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.refresh(tensors["vectors"].to(self._rows.device))

    def given(self, hidden: Tensor, mask: Tensor | None = None) -> Sampler:
        """Fix the queries: hidden states (G, T/G, d), of which the masked ones do not count."""
        if hidden.dim() != 3 or hidden.shape[2] != self._rows.shape[2]:
            raise ArgumentError(
                f"hidden has shape {tuple(hidden.shape)} for a table of width {self._rows.shape[2]}; "
                "pass (groups, targets in the group, dim)."
            )
        hidden = hidden.detach().to(self._rows.dtype)
        weights = hidden.new_ones(hidden.shape[:2]) if mask is None else mask.to(hidden.dtype)
        hidden = hidden.masked_fill(weights[..., None] == 0, 0.0)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
        forms = self.alpha * (hidden * weights[..., None]).transpose(1, 2) @ hidden  # (G, d, d)
        return _Walk(self, forms)


class _Walk:
    """The draws of a `QuadraticKernel` for fixed queries."""

    def __init__(self, tree: QuadraticKernel, forms: Tensor) -> None:
        self._tree = tree
        self._forms = forms
        self.num_items = tree.num_items
        self.num_negatives = tree.num_negatives

    @torch.no_grad()
    def draw(self, targets: Tensor, generator: torch.Generator, *, mask: Tensor | None = None) -> Negatives:
        tree, num_groups = self._tree, self._forms.shape[0]
        targets = check_targets(targets, self.num_items, mask)
        if targets.shape[0] != num_groups:
            raise ArgumentError(
                f"targets have shape {tuple(targets.shape)} but the queries were given for {num_groups} "
                "groups; call given() with the hidden states of these targets."
            )
        totals = (self._forms * tree._sums[-1]).sum((1, 2)) + tree.num_items  # (G,)
        node_floats = tree._rows.shape[2] ** 2 * max(2, tree._leaf_size // tree._rows.shape[2] + 1)
        step = max(1, _BLOCK_BYTES // (4 * tree.num_negatives * node_floats))
        ids = torch.cat([self._walk(forms, generator) for forms in torch.split(self._forms, step)])
        log_q, log_q_targets = ((self._masses(wanted) / totals[:, None]).log() for wanted in (ids, targets))
        return Negatives(ids, log_q, log_q_targets)

    def _walk(self, forms: Tensor, generator: torch.Generator) -> Tensor:
        tree, shape = self._tree, (forms.shape[0], self._tree.num_negatives)
        level = next(i for i, sums in enumerate(tree._sums) if len(sums) <= max(1, tree.num_negatives))
        masses = forms.flatten(1) @ tree._sums[level].flatten(1).T + tree._sizes[level]  # (G, nodes)
        nodes = _pick(masses[:, None].expand(*shape, -1), generator)  # (G, k)
        for below in range(level - 1, -1, -1):
            children = torch.stack([2 * nodes, 2 * nodes + 1], dim=-1)  # (G, k, 2)
            inside = tree._sums[below][children.flatten(1)].flatten(2) @ forms.flatten(1)[..., None]
            masses = inside.view(*shape, 2) + tree._sizes[below][children]
            nodes = 2 * nodes + _pick(masses, generator)
        rows = tree._rows[nodes]  # (G, k, leaf, d)
        masses = ((rows @ forms[:, None]) * rows).sum(-1) + 1
        places = _pick(masses * tree._present[nodes], generator)
        return nodes.mul(tree._leaf_size).add(places)

    def _masses(self, ids: Tensor) -> Tensor:
        rows = self._tree._rows.flatten(0, 1)[ids]  # (G, ..., d)
        return ((rows @ self._forms) * rows).sum(-1) + 1


def _pick(masses: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one place along the last axis in proportion to `masses`, in double precision."""
    sums = masses.double().clamp(min=0).cumsum(-1)
    device = generator.device
    shares = torch.rand(sums.shape[:-1], generator=generator, device=device, dtype=torch.float64)
    levels = shares.to(sums.device)[..., None] * sums[..., -1:]
    return (
        torch.searchsorted(sums.contiguous(), levels, right=True).squeeze(-1).clamp_(max=sums.shape[-1] - 1)
    )
