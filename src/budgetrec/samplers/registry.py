"""Every sampler by its name.

A new sampler is a file of its own and one entry in `SAMPLERS`. If it has options of its own, their record is
a base of `SamplerOptions`; flags and TOML keys follow. Builders import torch only when they are called.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from budgetrec import samplers
from budgetrec.samplers.specification import PopularityOptions, SamplerParts, SamplerSpecification

if TYPE_CHECKING:
    from torch import Tensor

    from budgetrec.samplers.contract import AnySampler, LastingSampler


def _popularity(parts: SamplerParts) -> "samplers.Popularity":
    # An item that is never trained on is still drawn now and then, or it could not be corrected for.
    power = PopularityOptions.of(parts.options).popularity_power
    return samplers.Popularity(parts.train_counts, parts.num_negatives, alpha=power, smoothing=1.0)


def _in_batch(parts: SamplerParts) -> "samplers.InBatch":
    from budgetrec.samplers.target_counts import log_shares

    log_q = log_shares(parts.target_counts(parts.num_negatives))
    return samplers.InBatch(parts.num_items, log_q, parts.num_negatives)


def _mixed(parts: SamplerParts) -> "samplers.Mixed":
    from budgetrec.samplers.target_counts import log_shares

    half = parts.num_negatives // 2
    num_in_batch = parts.num_negatives - half
    log_q = log_shares(parts.target_counts(num_in_batch))
    return samplers.Mixed(parts.num_items, log_q, num_in_batch=num_in_batch, num_uniform=half)


def _log_q(sampler: "AnySampler") -> "Tensor | None":
    import torch

    if isinstance(sampler, samplers.LogUniform | samplers.InBatch | samplers.Mixed):
        return sampler.log_q(torch.arange(sampler.num_items))
    return sampler.log_q if isinstance(sampler, samplers.Popularity) else None


def _kernel_lasts(sampler: "AnySampler") -> "LastingSampler | None":
    return sampler if isinstance(sampler, samplers.QuadraticKernel) else None


@dataclass(frozen=True, kw_only=True)
class SamplerOptions(PopularityOptions):
    """The options of all samplers together, as settings and flags hold them."""


SAMPLERS: dict[str, SamplerSpecification] = {
    each.name: each
    for each in (
        SamplerSpecification(
            name="uniform", build=lambda parts: samplers.Uniform(parts.num_items, parts.num_negatives)
        ),
        SamplerSpecification(
            name="popularity", build=_popularity, options=PopularityOptions, by_counts=True, proposal=_log_q
        ),
        SamplerSpecification(
            name="log-uniform",
            build=lambda parts: samplers.LogUniform(parts.num_items, parts.num_negatives),
            proposal=_log_q,
        ),
        SamplerSpecification(
            name="in-batch", build=_in_batch, whole_batch=True, share_from_batch=1.0, proposal=_log_q
        ),
        SamplerSpecification(
            name="mixed",
            build=_mixed,
            whole_batch=True,
            share_from_batch=0.5,
            fewest_negatives=2,  # half of them come from the batch
            proposal=_log_q,
        ),
        SamplerSpecification(
            name="kernel",
            build=lambda parts: samplers.QuadraticKernel(parts.item_table().detach(), parts.num_negatives),
            adaptive=True,
            why_no_proposal="it draws differently for every state, and the noise law takes one proposal",
            lasting=_kernel_lasts,
        ),
    )
}
