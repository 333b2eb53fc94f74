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
# # Improve a VAE you already have
#
# You have a VAE that you trained with your own code. In this tutorial you wrap it as a recmix model. Then you measure what
# its encoder loses on new examples, and get a part of it back, without training. It takes about half a minute on two cores.
#
# ## A VAE of your own
#
# This part does not use recmix. It is a VAE as many programs have it: two networks and a loop. The loss is a squared error,
# which is a Gaussian likelihood with a fixed variance, and the KL divergence to the prior.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)  # faster for networks of this size
digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16  # (1797, 64), values in [0, 1]
digits = digits[torch.randperm(len(digits))]
x_train, x_val, x_test = digits[:1200], digits[1200:1500], digits[1500:]

LATENT, VARIANCE = 8, 0.02
encoder = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT)
)
decoder = nn.Sequential(
    nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)
)


def loss(x):
    """The negative ELBO, up to a constant."""
    mean, log_variance = encoder(x).chunk(2, dim=1)
    z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    error = (x - decoder(z)).square().sum(1) / (2 * VARIANCE)
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return (error + kl).mean()


optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for _ in range(100):
    for batch in x_train[torch.randperm(len(x_train))].split(64):
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()
print(f"loss of training digits: {loss(x_train).item():.2f}, of test digits: {loss(x_test).item():.2f}")

# %% [markdown]
# ## Wrap it
#
# `wrap` needs both networks, the likelihood, and a few examples, from which it reads the shapes. It trains and copies nothing.
# [Bring your own VAE](../bring_your_own_vae.md) has a table: which loss is which likelihood.

# %%
import recmix

likelihood = recmix.likelihoods.Gaussian(VARIANCE, learned=False)
model = recmix.wrap(encoder, decoder, likelihood=likelihood, example=x_train[:2])
print(model)
print("q(z | x) of 5 digits:", tuple(model.posterior(x_test[:5]).mean.shape))

# %% [markdown]
# ## Measure what the encoder loses
#
# The ELBO lies below log p(x) for two reasons. The *approximation gap*: a diagonal Gaussian cannot be the true posterior. The
# *amortisation gap*: the encoder does not return the best Gaussian. `gap` measures both, for test and for training digits.

# %%
gap = model.gap(x_test[:40], train=x_train[:40], samples=300, check=5)
print(gap)

# %% [markdown]
# Most of the loss comes from the encoder, and it is larger on new digits. So a richer posterior would gain little, and steps
# for each digit can gain much.
#
# ## Improve it
#
# `refined(2)` takes two Gauss-Newton steps for each digit. `calibrated` chooses a factor of the standard deviations on
# validation digits. Both return a new model that shares the networks.

# %%
models = {
    "encoder": model,
    "encoder, calibrated": model.calibrated(x_val),
    "refined, 1 step": model.refined(1),
    "refined, 2 steps": model.refined(2),
}
print(f"{len(x_test)} test digits, nats per digit")
print(f"{'':24}{'ELBO':>8}{'IWAE-100':>10}")
found = {}
for name, used in models.items():
    found[name] = [bound.mean().item() for bound in used.bounds(x_test, samples=100)]
    print(f"{name:24}{found[name][0]:8.2f}{found[name][1]:10.2f}")

# %% [markdown]
# A calibrated posterior is wider: a better proposal for importance samples (IWAE-100 rises), but a worse approximation (the
# ELBO falls). Refinement raises both.

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
names = list(found)
for k, (label, colour) in enumerate([("ELBO", "#c0392b"), ("IWAE-100", "#1f4e9c")]):
    axis.plot(
        [found[name][k] for name in names], range(len(names)), "o", ms=9, color=colour, label=label
    )
axis.set_yticks(range(len(names)), names)
axis.invert_yaxis()
axis.set_xlabel("nats per test digit")
axis.grid(axis="x", alpha=0.3)
axis.legend()

# %% [markdown]
# ## Use it
#
# The improved model is used as before. It can be saved, and exported as ONNX files for other programs.

# %%
better = model.refined(2)
q = better.posterior(x_test[:5])
print("the posterior is now a", type(q).__name__, "with covariances", tuple(q.covariance_matrix.shape))

# %% [markdown]
# ## Next
#
# - [Bring your own VAE](../bring_your_own_vae.md): other outputs of networks, other likelihoods, pythae, diffusers, scvi-tools.
# - [Refine and calibrate](../inference.md): all kinds of refinement, and how to choose one within a time limit.
# - [How good is my posterior?](posterior_quality.ipynb)
