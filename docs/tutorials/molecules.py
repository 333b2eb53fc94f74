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
# # Molecules
#
# In this tutorial you train VAEs on molecules: once as graphs, once as SMILES strings. You refine their posteriors, and
# score the molecules that they make. It takes about a minute on two cores.
#
# You need RDKit: `pip install 'recmix[molecules]'`. Without it this tutorial stops here and says so.
#
# The molecules are made below from eleven chains and fifteen end groups. They are far too few for a model that invents
# molecules. The point is how to make the calls. The guide [Molecules](../molecules.md) has more.

# %%
import importlib.util
import sys

if importlib.util.find_spec("rdkit") is None:
    print("RDKit is not installed: pip install 'recmix[molecules]'")
    sys.exit(0)

import torch

import recmix
from recmix.evaluation import molecule_scores

torch.set_num_threads(1)  # faster for networks of this size
CHAINS = ["C", "CC", "CCC", "CC(C)", "CCCC", "CC(C)C", "C1CC1", "C1CCC1", "c1ccccc1", "CC(=O)C", "COC"]
ENDS = ["C", "N", "O", "F", "Cl", "C#N", "C=O", "C(=O)O", "C(N)=O", "OC", "NC", "SC", "C=C", "C(F)(F)F", "CO"]  # fmt: skip
molecules = sorted({chain + end for chain in CHAINS for end in ENDS})
parts = molecules[::2], molecules[1::4], molecules[3::4]  # training, validation, test
print(len(molecules), "molecules, such as", ", ".join(molecules[::30]))

# %% [markdown]
# ## As graphs
#
# A molecule is a graph: atoms are nodes, bonds are edges. `from_texts` reads SMILES strings and makes one example of class
# numbers for each: the atoms, then the bonds of all pairs of atoms. Molecules with more than `length` atoms are left out.

# %%
graphs = recmix.data.from_texts(*parts, kind="molecule-graphs", length=10)
print(graphs.vocabulary)
print("one example has", graphs.shape[0], "class numbers")

# %% [markdown]
# The likelihood is categorical. Decoders of this kind can ignore z (*posterior collapse*). Two options help. `kl_warmup`: the
# weight of the KL rises from 0 to 1 in the first epochs. `free_bits`: the first half nat of KL in each dimension costs nothing.
# `latent_report` says how much of x is in z. A KL near 0 would be a collapse.

# %%
network = {"latent": 8, "units": 32, "blocks": 1}
training = {
    "epochs": 120,
    "kl_warmup": 60,
    "free_bits": 0.5,
    "batch_size": 20,
    "learning_rate": 3e-3,
    "progress": False,
    "device": "cpu",
}
graph_vae = recmix.fit("vae", graphs, **network, **training)
print(graph_vae)
report = graph_vae.latent_report(graphs.x_test[:])
print(report)

# %% [markdown]
# ## As strings
#
# The same molecules as SMILES strings. Now an example is a sequence of tokens. The reconstructions of new molecules are similar
# to them, but not equal: there are 81 training molecules only.

# %%
strings = recmix.data.from_texts(*parts, kind="smiles", length=20)
print(strings.vocabulary)
string_vae = recmix.fit("vae", strings, **network, **training)
test_texts = string_vae.decode_texts(strings.x_test[:4])
for before, after in zip(test_texts, string_vae.reconstruct_texts(test_texts), strict=True):
    print(f"{before:12} -> {after}")

# %% [markdown]
# ## Refine and score
#
# With categorical data the curvature changes within the posterior. The kind `variational` is made for this case: it raises
# the ELBO itself. `molecule_scores` gives the usual shares: molecules that are reconstructed; and, of molecules made from the
# prior, those that are valid, those that are unique, and those that are not in the training set.
#
# Graphs and strings have different p(x). So compare bounds only within one kind. The printed shares are per cent.

# %%
models = {
    "graphs": (graph_vae, graphs),
    "graphs, refined": (graph_vae.refined(2, how="variational"), graphs),
    "strings": (string_vae, strings),
    "strings, refined": (string_vae.refined(2, how="variational"), strings),
}
heads = ("ELBO", "IWAE-50", "reconstr.", "valid", "unique", "novel")
print(f"{'':20}" + "".join(f"{head:>10}" for head in heads))
for name, (model, data) in models.items():
    elbo, iwae = (bound.mean().item() for bound in model.bounds(data.x_test[:], samples=50))
    found = molecule_scores(model, data.x_test, parts[0], encodings=2, decodings=2, samples=200)
    shares = (found.reconstruction, found.validity, found.uniqueness, found.novelty)
    print(f"{name:20}{elbo:10.2f}{iwae:10.2f}" + "".join(f"{share:10.0%}" for share in shares))

# %% [markdown]
# Refinement raises both bounds. Almost no test molecule is reconstructed exactly, for the reason above. The shares of molecules
# from the prior do not depend on the posterior. So they are the same with and without refinement.

# %%
print("some molecules from the prior:", ", ".join(found.examples[:6]))

# %% [markdown]
# ## Next
#
# - [Molecules](../molecules.md), and [text](../text.md): options against posterior collapse, what z holds.
# - Real molecules: `recmix.data.load("zinc250k")`, see [Data](../data.md). Use a GPU.
# - The same as a program: `examples/molecules.py`.
