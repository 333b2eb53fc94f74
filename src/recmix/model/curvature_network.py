"""A network that predicts the covariance of the posterior near a latent point."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.replaceable import replaceable

__all__ = ["FULL_UP_TO", "CurvatureNetwork", "chain_output", "scaled_triangle"]

FULL_UP_TO = 64
"""Largest latent dimension for which a full triangular matrix is predicted."""
HIDDEN = (512, 512, 512)
"""Sizes of the hidden layers."""


class CurvatureNetwork(nn.Module):
    """A network that predicts a factor L(z), (D, D), of the posterior's covariance near a point z.

    L Lᵀ approximates H(z)⁻¹. H = Jᵀ W J + C is the Gauss-Newton curvature of -log p(x, z): J is the
    decoder's Jacobian at z, W the likelihood's Fisher information and C the curvature of -log p(z). If W
    depends on the decoder's output alone, H does not depend on x. Otherwise the network predicts an
    average over examples near z.

    With rank 0, L is the product of a constant triangular matrix (a typical L) and a triangular matrix
    that the network predicts. With a rank r, L = diag(a) (I + U Vᵀ), where U and V have r columns each.
    Before training, the network gives the same typical L for every z.

    Args:
        latent: D, the dimension of z.
        rank: r, the number of columns of U and V. 0 means a full triangular L.

    >>> network = CurvatureNetwork(3, 0)
    >>> network(torch.zeros(2, 3))[0].shape
    torch.Size([2, 3, 3])
    """

    centre: Tensor
    spread: Tensor
    typical: Tensor
    places: Tensor

    def __init__(self, latent: int, rank: int) -> None:
        super().__init__()
        if not 0 <= rank <= latent:
            raise ConfigError(f"curvature_rank must be 0 to {latent} (the latent dimension), got {rank}")
        self.latent, self.rank = latent, rank
        sizes = (latent, *HIDDEN)
        layers = [
            part
            for size, following in zip(sizes, HIDDEN, strict=False)
            for part in (nn.Linear(size, following), nn.SiLU())
        ]
        outputs = latent * (1 + 2 * rank) if rank else latent * (latent + 1) // 2
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(HIDDEN[-1], outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if rank:  # U and V must not both be zero, or neither would have a gradient
            self.head.bias.data[latent + latent * rank :].normal_(std=latent**-0.5)
        self.register_buffer("centre", torch.zeros(latent))
        self.register_buffer("spread", torch.ones(latent))
        self.register_buffer("typical", torch.ones(latent) if rank else torch.eye(latent))
        places = torch.eye(latent, dtype=torch.int64)  # see `scaled_triangle`
        rows, columns = torch.tril_indices(latent, latent, -1)
        places[rows, columns] = 2 + torch.arange(len(rows))
        self.register_buffer("places", places.flatten(), persistent=False)

    def start_at(self, centre: Tensor, spread: Tensor, typical: Tensor) -> None:
        """Set the constants of the network from the data, before the network is trained.

        Args:
            centre: the mean of the latent points of the data, (D,).
            spread: the standard deviations of these points, (D,).
            typical: the factor L of an average posterior covariance L Lᵀ. If the rank is 0, which means
                full matrices, it is lower triangular, (D, D). Else it is the diagonal of L, (D,).
        """
        for buffer, value in ((self.centre, centre), (self.spread, spread), (self.typical, typical)):
            buffer.copy_(value)

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        """The factor L of the posterior's covariance L Lᵀ near latent points z (B, D).

        Returns:
            For rank 0, a tuple with the lower triangular matrices L, (B, D, D). For a rank r, log a (B,
            D), U (B, D, r) and V (B, D, r), where L = diag(a) (I + U Vᵀ).
        """
        out = chain_output((*self.layers, self.head), (z - self.centre) / self.spread)
        if self.rank:
            scale, pair = out.split([self.latent, 2 * self.latent * self.rank], dim=-1)
            left, right = pair.unflatten(-1, (2, self.latent, self.rank)).unbind(-3)
            return scale + self.typical.log(), left, right
        return (scaled_triangle(out, self.typical, self.places),)


@replaceable
def chain_output(layers: Sequence[nn.Module], rows: Tensor) -> Tensor:
    """The output (N, ...) of layers that are applied one after the other to `rows` (N, inputs)."""
    for layer in layers:
        rows = layer(rows)
    return rows


@replaceable
def scaled_triangle(out: Tensor, typical: Tensor, places: Tensor) -> Tensor:
    """The matrices L = T diag(exp a) M, (B, D, D), that a `CurvatureNetwork` with rank 0 predicts.

    L Lᵀ is the predicted covariance. M is lower triangular with ones on the diagonal.

    Args:
        out: the network's outputs (B, D(D + 1)/2): first a, (B, D), then the entries of M below its
            diagonal, row by row.
        typical: the constant matrix T, (D, D), lower triangular.
        places: for each of the D² entries of M, row by row: 0 for the entry 0, 1 for the entry 1, or 2 +
            i for entry i below the diagonal.
    """
    scale, below = out.tensor_split([len(typical)], dim=-1)
    padded = torch.cat([torch.zeros_like(scale[:, :1]), torch.ones_like(scale[:, :1]), below], -1)
    unit = padded.index_select(-1, places).unflatten(-1, typical.shape)
    return typical @ (scale.exp()[..., None] * unit)
