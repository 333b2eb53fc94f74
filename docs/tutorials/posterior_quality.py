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
# # How good is my posterior?
#
# A VAE gives you a posterior q(z | x). How far is it from the true one, and what can you do about it? In this tutorial you
# use three tools: curves of the IWAE bound, the gap report, and calibration. It takes about a minute on two cores.

# %%
import matplotlib.pyplot as plt
import torch

import recmix

torch.set_num_threads(1)  # faster for networks of this size
data = recmix.data.load("digits")
vae = recmix.fit("vae", data, latent=8, epochs=100, device="cpu")
train, test = data.x_train[:200], data.x_test[:200]
print(vae, "best validation IWAE:", round(max(row["val_iwae"] for row in vae.history), 2))

# %% [markdown]
# ## 1. Curves of the IWAE bound
#
# The IWAE bound with K samples is never below the ELBO. It rises to log p(x) as K grows. If q(z | x) were the true posterior,
# it would not depend on K at all. So a curve that rises a lot says that the posterior is poor.

# %%
counts = [1, 3, 10, 30, 100, 300]
models = {"encoder": vae, "refined, 2 steps": vae.refined(2)}
curves = {
    (name, part): [model.log_likelihood(x, samples=k).mean().item() for k in counts]
    for name, model in models.items()
    for part, x in (("training", train), ("test", test))
}
print(f"{'IWAE-K, K =':28}" + "".join(f"{k:8}" for k in counts))
for (name, part), curve in curves.items():
    print(f"{name + ', ' + part:28}" + "".join(f"{value:8.2f}" for value in curve))

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for axis, part in zip(axes, ("training", "test"), strict=True):
    for name, colour in zip(models, ("#c0392b", "#1f4e9c"), strict=True):
        axis.semilogx(counts, curves[name, part], "o-", color=colour, label=name)
    axis.set(title=f"{part} digits", xlabel="samples K", ylabel="IWAE-K, nats")
    axis.grid(alpha=0.3)
axes[0].legend()

# %% [markdown]
# The red curves rise: the encoder's posterior is not the true one, and it is worse on test digits. The blue curves are almost
# flat: after two refinement steps the posterior is nearly right. With more and more samples both curves of a panel reach the
# same value, log p(x).
#
# ## 2. The gap report
#
# The curve says *that* something is lost. `gap` says *where*. It optimises a Gaussian for each digit, and estimates log p(x)
# with importance samples around it. Annealed importance sampling checks a few of these estimates.

# %%
gap = vae.gap(test[:40], train=train[:40], samples=300, check=5)
print(gap)

# %% [markdown]
# Read the last rows. The approximation gap is what a diagonal Gaussian cannot do. The amortisation gap is what the encoder
# does not find. The last line gives advice. Each digit has its own values:

# %%
figure, axis = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
bins = torch.linspace(0, gap.amortisation.max().item(), 16).tolist()
axis.hist(gap.amortisation.tolist(), bins, color="#1f4e9c", alpha=0.7, label="test")
axis.hist(gap.train.amortisation.tolist(), bins, color="#777777", alpha=0.7, label="training")
axis.set(xlabel="amortisation gap, nats", ylabel="digits")
axis.legend()
worst = int(gap.amortisation.argmax())
print(f"largest amortisation gap: {gap.amortisation[worst].item():.1f} nats (test digit {worst})")

# %% [markdown]
# ## 3. Calibration
#
# The encoder learned its standard deviations on training digits, where its means are good. On new digits they are too small.
# Multiply them by a factor, and look at the bounds of validation digits:

# %%
scales = [0.7, 1.0, 1.4, 2.0, 2.8, 4.0]
print(f"{'factor':>8}{'ELBO':>9}{'IWAE-100':>10}")
for scale in scales:
    elbo, iwae = vae.using(scale=scale).bounds(data.x_val, samples=100)
    print(f"{scale:8.1f}{elbo.mean().item():9.2f}{iwae.mean().item():10.2f}")

# %% [markdown]
# `calibrated` makes this search for you. It also asks whether digits that fit badly need a wider posterior (`slope`). The
# search uses validation digits only. So the test digits stay a fair test.

# %%
calibrated = vae.calibrated(data.x_val, samples=100)
print(f"scale {calibrated.inference.scale:.2f}, slope {calibrated.inference.slope:.4f}")

rows = {
    "encoder": vae,
    "calibrated": calibrated,
    "refined": vae.refined(2),
    "refined and calibrated": vae.refined(2).calibrated(data.x_val, samples=100),
}
print(f"\n{'test digits':26}{'ELBO':>8}{'IWAE-100':>10}")
for name, model in rows.items():
    elbo, iwae = model.bounds(test, samples=100)
    print(f"{name:26}{elbo.mean().item():8.2f}{iwae.mean().item():10.2f}")

# %% [markdown]
# ## What to do with your model
#
# | you see | do |
# |---|---|
# | flat curves, total gap below 1 nat | nothing: the posterior is good |
# | a large approximation gap | use a [richer posterior](../methods.md): `full`, `rme`, `iaf` |
# | a large amortisation gap on new examples | [refine](../refinement.md), or train the method [`residual`](../iterative_methods.md) |
# | the same on training examples | a wider encoder, longer training, or refinement |
# | no time for steps at test time | [calibrate](../calibration.md) |
#
# [What inference loses, and where](../gaps.md) says how the gaps are measured, and how far you can trust them.
