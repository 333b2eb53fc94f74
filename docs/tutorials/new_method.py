# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Add a method in one file
#
# In this tutorial you write a new method, train it, and compare it with others. It takes about half a minute on two cores.
#
# ## The method
#
# A VAE maximises the ELBO. An importance weighted autoencoder maximises the IWAE bound. The *Rényi bound* of Li & Turner (2016)
# has both as special cases. With weights $w_k = p(x, z_k) / q(z_k \mid x)$ of $K$ samples it is
#
# $$
# L_\alpha = \frac{1}{1 - \alpha} \log \frac1K \sum_{k=1}^K w_k^{1 - \alpha} .
# $$
#
# $\alpha = 0$ is the IWAE bound, $\alpha \to 1$ is the ELBO. The posterior is one Gaussian from one encoder, as in `vae`.
# So there is no new posterior to write, only a new loss.
#
# ## The class
#
# A method is a class with a name, a title and a reference. Its options are keyword arguments with types and defaults. The base
# class does the rest: optimisers, training steps, starting from a VAE, saving.

# %%
import torch
from torch import Tensor, nn

import recmix
from recmix.errors import ConfigError
from recmix.methods.method import Method
from recmix.methods.vae import GaussianComponent
from recmix.objectives import log_mean_exp, log_weights


@recmix.register
class RenyiVAE(Method):
    """A diagonal Gaussian, trained on the Rényi bound.

    Args:
        model: p(x, z).
        encoder: gives the mean and the log-variance of q(z | x).
        alpha: order of the bound, at least 0 and below 1. 0 is the IWAE bound.
        samples: number of samples of z for each example, at least 2.
    """

    name = "renyi"
    title = "Rényi bound"
    reference = "Li & Turner 2016"
    setting = "alpha"
    starts_from = None  # it is trained from random weights

    def __init__(
        self, model: recmix.LatentModel, encoder: nn.Module, *, alpha: float = 0.5, samples: int = 5
    ) -> None:
        super().__init__(model, [GaussianComponent(encoder, model)])
        if not 0 <= alpha < 1:
            raise ConfigError(
                f"alpha must be at least 0 and below 1, got {alpha}; for 1 use the method 'vae'"
            )
        if samples < 2:
            raise ConfigError(f"samples must be at least 2, got {samples}; with 1 use the method 'vae'")
        self.alpha, self.samples = alpha, samples

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the Rényi bound (batch mean)."""
        log_w = log_weights(
            self.model, x, self.posterior(x), self.samples, generator=generator
        )  # (K, B)
        return -log_mean_exp((1 - self.alpha) * log_w).mean() / (1 - self.alpha)


# %% [markdown]
# That is all. `register` makes the name known. To add the method to recmix itself, save this cell as
# `src/recmix/methods/renyi.py`: every file in that folder is imported, and the command line, option files, grids and contract
# tests know the method, too.
#
# ## Train it
#
# Your method is now used like any other. All options of training work, and so does refinement.

# %%
torch.set_num_threads(1)  # faster for networks of this size
data = recmix.data.load("digits")
settings = {"latent": 8, "epochs": 40, "device": "cpu"}
models = {
    "vae": recmix.fit("vae", data, **settings),
    "renyi, alpha 0.5": recmix.fit("renyi", data, alpha=0.5, samples=5, **settings),
    "iwae": recmix.fit("iwae", data, samples=5, **settings),
}
models["renyi, refined"] = models["renyi, alpha 0.5"].refined(2)
print(f"{'test digits':20}{'ELBO':>8}{'IWAE-100':>10}")
for name, model in models.items():
    elbo, iwae = model.bounds(data.x_test, samples=100)
    print(f"{name:20}{elbo.mean().item():8.2f}{iwae.mean().item():10.2f}")

# %% [markdown]
# ## Errors for free
#
# Options are checked. Names that do not exist are refused, and your own check says what to do:

# %%
for options in ({"alpha": 2.0}, {"alhpa": 0.5}):
    try:
        recmix.fit("renyi", data, epochs=1, **options)
    except recmix.RecmixError as error:
        print(str(error).partition(" Valid:")[0])

# %% [markdown]
# ## Check the formula
#
# A new method needs a test of its formula. Here: $\alpha = 0$ must be the IWAE bound, for the same noise, and the bound must
# fall as $\alpha$ rises.

# %%
x = torch.as_tensor(data.x_test[:50])
method = models["renyi, alpha 0.5"].method


def bound(alpha):
    """The Rényi bound of x with fixed noise."""
    method.alpha = alpha
    with torch.no_grad():
        return -method.loss(x, generator=torch.Generator().manual_seed(0)).item()


with torch.no_grad():
    generator = torch.Generator().manual_seed(0)
    iwae = (
        recmix.objectives.iwae(method.model, x, method.posterior(x), 5, generator=generator)
        .mean()
        .item()
    )
bounds = [bound(alpha) for alpha in (0.0, 0.5, 0.9, 0.99)]
print(f"IWAE-5 {iwae:.3f}, Rényi bounds {[round(value, 3) for value in bounds]}")
assert abs(bounds[0] - iwae) < 1e-3
assert bounds == sorted(bounds, reverse=True)

# %% [markdown]
# ## Next
#
# - [A new method](../new_method.md): all rules, and a method with a posterior of its own.
# - The contract tests run for every registered method: `pytest tests/methods/test_contract.py -k renyi`.
# - [Your own training loop](../training_loop.md): the bounds as plain functions.
