"""Use SCVI models of scvi-tools, for single-cell counts, as a `recmix.Model`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recmix.api import Model, wrap
from recmix.errors import ConfigError, check_arguments
from recmix.model.likelihoods import NegativeBinomial, ZeroInflatedNegativeBinomial

__all__ = ["scvi"]

LIKELIHOODS = {"zinb": ZeroInflatedNegativeBinomial, "nb": NegativeBinomial}


@check_arguments
def scvi(model: Any, *, batch: int = 0) -> Model:
    """Make a `recmix.Model` of a trained ``scvi.model.SCVI``, for counts x (B, genes).

    All cells must belong to one experimental batch. The total count that the likelihood needs is
    computed from each cell itself, as scvi-tools does by default.

    Args:
        model: an ``SCVI`` with one dispersion per gene, a normal latent distribution, observed library
            sizes, and the likelihood zinb or nb.
        batch: the number of the experimental batch that the cells belong to.
    """
    module = getattr(model, "module", None)
    if module is None or not hasattr(module, "z_encoder"):
        raise ConfigError(f"a {type(model).__name__} is not an scvi.model.SCVI")
    expected = {
        "use_observed_lib_size": True,
        "dispersion": "gene",
        "latent_distribution": "normal",
    }
    for name, value in expected.items():
        if getattr(module, name, value) != value:
            raise ConfigError(
                f"the SCVI model has {name}={getattr(module, name)!r}; only {value!r} is supported"
            )
    if module.gene_likelihood not in LIKELIHOODS:
        raise ConfigError(
            f"the SCVI model has gene_likelihood={module.gene_likelihood!r}; expected zinb or nb"
        )
    module.eval()
    genes = module.px_r.shape[0]
    likelihood = LIKELIHOODS[module.gene_likelihood]((genes,), library=True)
    with torch.no_grad():
        likelihood.log_inverse_dispersion.copy_(module.px_r)
    return wrap(
        _Encode(module, batch),
        _Decode(module, batch),
        likelihood=likelihood,
        example=torch.ones(2, genes, device=module.px_r.device),
        label="SCVI",
    )


class _Encode(nn.Module):
    """The encoder of an SCVI model as a module: counts (B, genes) -> q(z | x)."""

    def __init__(self, module: nn.Module, batch: int) -> None:
        super().__init__()
        self.module = module
        self.batch = batch

    def forward(self, x: Tensor) -> Any:
        module: Any = self.module
        seen = torch.log1p(x) if module.log_variational else x
        q, _ = module.z_encoder(seen, _column(x, self.batch))
        return q


class _Decode(nn.Module):
    """The decoder of an SCVI model as a module: z (N, D) -> the parameters of p(x | z).

    The parameters are the logarithm of each gene's share of the total count, (N, genes). With zero
    inflation, the logit of an extra zero for each gene is appended, (N, 2 * genes).
    """

    def __init__(self, module: nn.Module, batch: int) -> None:
        super().__init__()
        self.module = module
        self.batch = batch

    def forward(self, z: Tensor) -> Tensor:
        module: Any = self.module
        total = torch.zeros_like(z[:, :1])  # the logarithm of a total of 1: rates are shares
        share, _, _, dropout = module.decoder(module.dispersion, z, total, _column(z, self.batch))
        log_share = share.clamp(min=1e-30).log()
        return log_share if module.gene_likelihood == "nb" else torch.cat([log_share, dropout], 1)


def _column(like: Tensor, batch: int) -> Tensor:
    return torch.full((len(like), 1), batch, dtype=torch.long, device=like.device)
