"""The paper's pseudocode, written out: every update evaluates again what it needs.

It has its own densities and its own loop. It takes its noise from a table, so that it can be compared
with the library's updates of linear cost for the same noise.
"""

import math

import torch


def log_normal(z, mean, log_variance):
    return -0.5 * ((z - mean) ** 2 / log_variance.exp() + log_variance + math.log(2 * math.pi)).sum(-1)


class LiteralRecursion:
    """Algorithm 1 with min(C, KL); `noise[m]` is (update, mixture), each (B, D)."""

    def __init__(self, encoders, gates, decode_log_likelihood, decoder_parameters, rate, bound):
        self.encoders = encoders
        self.gates = gates
        self.log_likelihood = decode_log_likelihood
        self.bound = bound
        self.optimizers = {
            "encoders": [torch.optim.Adam(e.parameters(), lr=rate) for e in encoders],
            "gates": [torch.optim.Adam(g.parameters(), lr=rate) for g in gates],
            "decoder": torch.optim.Adam(decoder_parameters, lr=rate),
        }

    def component(self, x, k):
        mean, log_variance = self.encoders[k](x).chunk(2, -1)
        return mean, log_variance

    def alphas(self, x, k):
        """α_0 … α_k from ε_0 = 1, ε_1 … ε_k."""
        eps = [torch.ones(len(x), dtype=x.dtype)] + [g(x)[0].exp() for g in self.gates[:k]]
        return [
            eps[m]
            * math.prod(((1 - eps[j]) for j in range(m + 1, k + 1)), start=torch.ones_like(eps[0]))
            for m in range(k + 1)
        ]

    def log_mixture(self, x, k, z):
        parts = [a.log() + log_normal(z, *self.component(x, m)) for m, a in enumerate(self.alphas(x, k))]
        return torch.stack(parts).logsumexp(0)

    def new_component(self, x, k, noise):
        mean, log_variance = self.component(x, k)
        z = mean + (0.5 * log_variance).exp() * noise
        prior_kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1)
        elbo = (self.log_likelihood(x, z) - prior_kl).mean()
        if k == 0:
            return elbo, None
        kl = (log_normal(z, mean, log_variance) - self.log_mixture(x, k - 1, z)).mean()
        return elbo, kl

    def mixture_elbo(self, x, k, noise):
        total = 0
        for m, alpha in enumerate(self.alphas(x, k)):
            mean, log_variance = self.component(x, m)
            z = mean + (0.5 * log_variance).exp() * noise[m][1]
            log_prior = log_normal(z, torch.zeros_like(z), torch.zeros_like(z))
            total = total + alpha * (self.log_likelihood(x, z) + log_prior - self.log_mixture(x, k, z))
        return total.mean()

    def update(self, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def step(self, x, noise):
        elbo, _ = self.new_component(x, 0, noise[0][0])
        self.update(self.optimizers["encoders"][0], -elbo)
        for m in range(1, len(self.encoders)):
            elbo, kl = self.new_component(x, m, noise[m][0])
            self.update(self.optimizers["encoders"][m], -elbo + (self.bound - kl).relu())
            self.update(self.optimizers["gates"][m - 1], -self.mixture_elbo(x, m, noise))
        last = len(self.encoders) - 1
        self.update(self.optimizers["decoder"], -self.mixture_elbo(x, last, noise))
