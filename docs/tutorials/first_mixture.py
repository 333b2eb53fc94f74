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
# # Your first recursive mixture
#
# In this tutorial you train a VAE on handwritten digits. Then you grow a mixture of three encoders from it, and compare the
# two. You see what a posterior is in recmix, and how to tell whether a change helped. It takes about half a minute on two
# cores.
#
# You need recmix ([Getting started](../getting_started.md) says how to install it) and nothing else: the digits come with
# scikit-learn.

# %%
import matplotlib.pyplot as plt
import torch

import recmix

torch.set_num_threads(1)  # faster for networks of this size
data = recmix.data.load("digits")
print("training, validation, test:", data.x_train.shape, data.x_val.shape, data.x_test.shape)

# %% [markdown]
# ## Train a VAE
#
# `fit` takes the name of a method, data, and options. The model of the best validation epoch is returned. `latent` is the
# dimension of z.

# %%
vae = recmix.fit("vae", data, latent=8, epochs=40, device="cpu")
print(vae)
print("last epoch:", {name: round(value, 4) for name, value in vae.history[-1].items()})

# %% [markdown]
# ## Look at a posterior
#
# A posterior q(z | x) is a distribution of PyTorch. It has a mean, samples and densities. The sample axis comes first.

# %%
x = torch.as_tensor(data.x_test[:8])  # (8, 1, 8, 8)
q = vae.posterior(x)
z = q.sample((100,))
print(
    "mean:",
    tuple(q.mean.shape),
    " samples:",
    tuple(z.shape),
    " log q(z | x):",
    tuple(q.log_prob(z).shape),
)

# %% [markdown]
# The decoder turns a latent vector into a digit. Below: eight test digits, their reconstructions, and eight digits that the
# model makes from the prior.

# %%
rows = {"test digit": x, "reconstruction": vae.reconstruct(x), "from the prior": vae.sample(8, seed=0)}
figure, axes = plt.subplots(3, 8, figsize=(8, 3.2), layout="constrained")
for row, (name, images) in zip(axes, rows.items(), strict=True):
    row[0].set_title(name, loc="left", fontsize=9)
    for axis, image in zip(row, images, strict=True):
        axis.imshow(image[0], cmap="gray_r", vmin=0, vmax=1)
        axis.axis("off")

# %% [markdown]
# ## Grow a mixture
#
# The method `rme` starts from the VAE. It adds one encoder at a time. Each new encoder must explain the digit *and* differ
# from the mixture so far ([The recursion](../recursion.md)). `order` is the number of encoders.
#
# Training a VAE longer also helps. So a fair comparison needs a control: **VAE+**, the same VAE, trained as long as the
# mixture.

# %%
plus = recmix.fit("vae", data, init=vae, epochs=20, device="cpu")
rme = recmix.fit("rme", data, init=vae, order=3, epochs=20, device="cpu")

q = rme.posterior(x)
print(
    "components:", len(q.components), " mean weights:", [round(w, 3) for w in q.weights.mean(0).tolist()]
)

# %% [markdown]
# ## Compare
#
# Two lower bounds of log p(x) tell how good a model is. The ELBO is what a VAE is trained on. IWAE-100 uses 100 samples of
# the posterior and is closer to log p(x). Both are in nats, and higher is better.

# %%
test = data.x_test


def show(models):
    """Print both bounds of each model, as the mean over the test digits."""
    print(f"{'':28}{'ELBO':>8}{'IWAE-100':>10}")
    for name, model in models.items():
        elbo, iwae = model.bounds(test, samples=100)
        print(f"{name:28}{elbo.mean():8.2f}{iwae.mean():10.2f}")


show({"VAE": vae, "VAE+": plus, "RME(3)": rme})

# %% [markdown]
# VAE+ and the mixture are close. That is the usual result for small models: most of the gain over the first VAE comes from
# training longer, and the control has it too. recmix always prints it, so that no method gets credit for what training did.
#
# ## What a few steps per digit do
#
# The posterior of each model can be *refined*: a few Gauss-Newton steps through the decoder, for each digit. Nothing is
# trained for it.

# %%
show({"VAE+": plus, "VAE+, refined": plus.refined(2), "RME(3)": rme, "RME(3), refined": rme.refined(2)})

# %% [markdown]
# Here refinement gains much more than the mixture. The reason is that the encoder, and not the family of Gaussians, was the
# problem. The tutorial [How good is my posterior?](posterior_quality.ipynb) shows how to find that out for your own model.
#
# ## Save and load

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp()) / "rme"
rme.save(folder)
loaded = recmix.load(folder, device="cpu")
print("the same bounds:", torch.equal(loaded.elbo(x), rme.elbo(x)))

# %% [markdown]
# ## Next
#
# - [How good is my posterior?](posterior_quality.ipynb)
# - Use your own [data](../data.md) and [networks](../networks.md).
# - All [methods](../methods.md), and [results](../results.md) on larger data.
