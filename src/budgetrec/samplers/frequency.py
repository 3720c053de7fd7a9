"""How often an item occurs, learnt from the stream of batches itself."""

import torch
from torch import Tensor

from budgetrec.errors import ArgumentError
from budgetrec.samplers.contract import check_num_items


class StreamingFrequency:
    r"""Estimates q from the time between two occurrences of an item (Yi et al., RecSys 2019, algorithm 2).

    At step $t$ every distinct item of the batch updates its mean waiting time $B \leftarrow (1 - a) B + a (t
    - A)$ and its last step $A \leftarrow t$; the item is then in a batch with probability $1 / B$. Early on
    $a$ is one over the number of occurrences, so that $B$ starts as a plain mean and not at an arbitrary
    value; later it is `rate`. An item not yet seen has waited $t + 1$ steps. Ids are known and bounded here,
    so the paper's hashed arrays become plain ones.

    A batch of $P$ targets holds an item of probability $q$ with probability $1 - (1 - q)^P$; `log_q` inverts
    this with the mean $P$ seen so far, so it is the probability of one draw, which is what the other samplers
    speak of.

    >>> stream = StreamingFrequency(3)
    >>> for step in range(4):
    ...     stream.observe(torch.tensor([0, 2 - step % 2]))  # item 0 always, items 2 and 1 in turn
    >>> stream.inclusion(torch.tensor([0, 1])).tolist()
    [1.0, 0.5]
    """

    def __init__(self, num_items: int, *, rate: float = 0.01) -> None:
        if not 0 < rate < 1:
            raise ArgumentError(f"rate is {rate}; pass a number between 0 and 1, such as 0.01.")
        self.num_items = check_num_items(num_items)
        self.rate = rate
        self.num_steps = 0
        self._num_targets = 0
        self._last_step = torch.zeros(num_items, dtype=torch.int32)
        self._occurrences = torch.zeros(num_items, dtype=torch.int32)
        self._wait = torch.zeros(num_items)

    def observe(self, targets: Tensor, *, mask: Tensor | None = None) -> None:
        """Take in the targets of one batch, any shape."""
        targets = (targets.flatten() if mask is None else targets[mask]).cpu()
        self.num_steps += 1
        self._num_targets += targets.shape[0]
        ids = torch.unique(targets)
        if ids.shape[0] == 0:
            return
        if int(ids[0]) < 0 or int(ids[-1]) >= self.num_items:
            raise ArgumentError(
                f"targets run from {int(ids[0])} to {int(ids[-1])} but there are {self.num_items} items; "
                "ids go from 0 to one below that, and padding belongs under the mask."
            )
        self._occurrences[ids] += 1
        share = (1 / self._occurrences[ids]).clamp_(min=self.rate)
        waited = self.num_steps - self._last_step[ids]
        self._wait[ids] = torch.lerp(self._wait[ids], waited.float(), share)
        self._last_step[ids] = self.num_steps

    def inclusion(self, ids: Tensor) -> Tensor:
        """Probability that a batch holds each id."""
        waits = self._wait[ids.cpu()]
        unseen = self._occurrences[ids.cpu()] == 0
        return (1 / torch.where(unseen, float(self.num_steps + 1), waits)).to(ids.device)

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probability that one draw of the stream gives each id."""
        if self.num_steps == 0:
            raise ArgumentError("no batch has been seen yet; call observe(targets) before the first draw.")
        per_step = max(1.0, self._num_targets / self.num_steps)
        # An item seen in every batch has an inclusion of one, of which only a bound can be inverted.
        inclusion = self.inclusion(ids).double().clamp(max=1 - 1 / (2 * self.num_steps + 2))
        return (-torch.expm1(torch.log1p(-inclusion) / per_step)).log().float()
