"""The paper's pseudocode in plain PyTorch, as a researcher would write it: the baseline of training.

Names follow the pseudocode. Each update computes everything it needs again, with new noise. One ordinary
Adam has all parameters, and `enable_grad` selects those that an update changes. Nothing is slow on
purpose: components are evaluated once per forward pass, and images are already centred and on the
device. It shares only the networks with the library.

Reference: Kim & Pavlovic, Recursive Inference for Variational Autoencoders, NeurIPS 2020, supplement,
"Pseudo Codes".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recmix.model.networks import make_decoder, make_encoder

LOG_2PI = math.log(2 * math.pi)


class DiagonalGaussian:
    """Diagonal Gaussians, one for each image: mu and logvar are (n, z_dim)."""

    def __init__(self, mu: Tensor, logvar: Tensor) -> None:
        self.mu = mu
        self.logvar = logvar

    def sample(self) -> Tensor:
        return self.mu + (0.5 * self.logvar).exp() * torch.randn_like(self.mu)

    def log_prob(self, z: Tensor) -> Tensor:
        return -0.5 * ((z - self.mu) ** 2 / self.logvar.exp() + self.logvar + LOG_2PI).sum(-1)

    def kl_to_prior(self) -> Tensor:
        return 0.5 * (self.mu**2 + self.logvar.exp() - 1 - self.logvar).sum(-1)


class Mixture:
    """Mixtures of Gaussians, one for each image; each of logalphas is (n,)."""

    def __init__(self, comps: list[DiagonalGaussian], logalphas: list[Tensor]) -> None:
        self.comps = comps
        self.logalphas = logalphas

    def log_prob(self, z: Tensor) -> Tensor:
        terms = [a + q.log_prob(z) for a, q in zip(self.logalphas, self.comps, strict=True)]
        return torch.stack(terms).logsumexp(0)


class ConvEncoder(nn.Module):
    def __init__(self, z_dim: int, x_dim: tuple[int, int, int]) -> None:
        super().__init__()
        self.net = make_encoder("conv", x_dim, z_dim)

    def forward(self, x: Tensor) -> DiagonalGaussian:
        mu, logvar = self.net(x).chunk(2, -1)
        return DiagonalGaussian(mu, logvar)


class ConvDecoder(nn.Module):
    """p(x|z): a Gaussian whose mean is the network's output, with one learned variance."""

    def __init__(self, z_dim: int, x_dim: tuple[int, int, int], variance: float) -> None:
        super().__init__()
        self.net = make_decoder("conv", x_dim, z_dim)
        self.logvar = nn.Parameter(torch.tensor(math.log(variance)))

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        mean = self.net(z)
        squares = (x - mean) ** 2 / self.logvar.exp()
        log_p: Tensor = -0.5 * (squares + self.logvar + LOG_2PI).sum((1, 2, 3))
        return log_p


class BaseBoundedRegressor(nn.Module):
    """ε(x) with eps_min < ε < eps_max, (n,)."""

    def __init__(
        self, x_dim: tuple[int, int, int], eps_min: float, eps_max: float, hidden: int = 10
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(x_dim), hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.eps_min = eps_min
        self.eps_max = eps_max

    def forward(self, x: Tensor) -> Tensor:
        score = self.net(x).squeeze(-1)
        return self.eps_min + (self.eps_max - self.eps_min) * torch.sigmoid(score)


class RecMixVAE(nn.Module):
    def __init__(
        self,
        num_comps: int,
        z_dim: int,
        x_dim: tuple[int, int, int],
        *,
        variance: float = 1.0,
        eps_min: float = 0.001,
        eps_max: float = 0.1,
    ) -> None:
        super().__init__()
        self.M = num_comps - 1  # components: 0, 1, ..., M
        self.decoder = ConvDecoder(z_dim, x_dim, variance)
        self.comps = nn.ModuleList(ConvEncoder(z_dim, x_dim) for _ in range(num_comps))
        self.eps_regrs = nn.ModuleList(  # eps_1, ..., eps_M; eps_0 is 1
            BaseBoundedRegressor(x_dim, eps_min, eps_max) for _ in range(self.M)
        )

    def encoder_upto_kth(self, x: Tensor, k: int) -> Mixture:
        """Q_k(.|x), the mixture of components 0, ..., k."""
        comps = [self.encoder_kth_comp(x, m) for m in range(k + 1)]
        eps = [torch.ones(len(x), dtype=x.dtype, device=x.device)]
        eps += [self.eps_regrs[m - 1](x) for m in range(1, k + 1)]
        logalphas = []
        for m in range(k + 1):
            alpha = eps[m]
            for j in range(m + 1, k + 1):
                alpha = alpha * (1 - eps[j])
            logalphas.append(alpha.log())
        return Mixture(comps, logalphas)

    def encoder_kth_comp(self, x: Tensor, k: int) -> DiagonalGaussian:
        """q_k(.|x), component k."""
        comp: DiagonalGaussian = self.comps[k](x)
        return comp

    def eval_elbo_for_mixture(self, x: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """E_Q[log p(x|z)] and KL(Q || p), with one sample of each component."""
        alphas = [a.exp() for a in mixture.logalphas]
        z = [q.sample() for q in mixture.comps]
        log_p_x = [self.decoder.log_prob(x, z_m) for z_m in z]
        log_p_z = [-0.5 * (z_m**2 + LOG_2PI).sum(-1) for z_m in z]
        log_q_z = [mixture.log_prob(z_m) for z_m in z]
        ell = torch.stack([a * p for a, p in zip(alphas, log_p_x, strict=True)]).sum(0)
        kl = torch.stack([a * (q - p) for a, q, p in zip(alphas, log_q_z, log_p_z, strict=True)]).sum(0)
        return ell, kl

    def forward(self, x: Tensor, k: int, loss_type: str) -> tuple[Tensor, Tensor | None]:
        if loss_type == "mixture":
            ell, kl = self.eval_elbo_for_mixture(x, self.encoder_upto_kth(x, k))
            return (ell - kl).mean(), None
        q = self.encoder_kth_comp(x, k)
        mixture = self.encoder_upto_kth(x, k - 1) if k > 0 else None
        z = q.sample()
        elbo = (self.decoder.log_prob(x, z) - q.kl_to_prior()).mean()
        if mixture is None:
            return elbo, None
        return elbo, (q.log_prob(z) - mixture.log_prob(z)).mean()

    def enable_grad(self, module: nn.Module) -> None:
        """Require gradients of the parameters of `module` only."""
        for p in self.parameters():
            p.requires_grad_(False)
        for p in module.parameters():
            p.requires_grad_(True)


class Literal:
    """The main algorithm: each call of `step` trains on one batch."""

    def __init__(self, model: RecMixVAE, *, learning_rate: float = 1e-6, kl_max: float = 500.0) -> None:
        self.model = model
        self.kl_max = kl_max
        self.optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def step(self, batch: Tensor) -> Tensor:
        """Train on one batch. Returns the last ELBO, on the device."""
        model = self.model

        # update q_0
        model.enable_grad(model.comps[0])
        elbo, _ = model(batch, 0, loss_type="new_comp")
        self.update(-elbo)

        # update (q_m, eps_regr_m) for m = 1, ..., M
        for m in range(1, model.M + 1):
            model.enable_grad(model.comps[m])
            elbo, kl = model(batch, m, loss_type="new_comp")
            self.update(-elbo + (self.kl_max - kl).relu())

            model.enable_grad(model.eps_regrs[m - 1])
            elbo, _ = model(batch, m, loss_type="mixture")
            self.update(-elbo)

        # update decoder
        model.enable_grad(model.decoder)
        elbo, _ = model(batch, model.M, loss_type="mixture")
        self.update(-elbo)
        last: Tensor = elbo.detach()
        return last
