"""Molecules as graphs and as strings: train small models, refine the posterior, and score molecules.

python examples/molecules.py            # under a minute on two cores; needs RDKit

RDKit is in the extra: pip install 'recmix[molecules]'. The molecules are written below. They are far
too few for a model that invents molecules: the example shows the calls. For real figures use ZINC,
`recmix.data.load("zinc250k", graphs=True)`, and a GPU; see docs/molecules.md.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

import recmix
from recmix.evaluation import molecule_scores

CHAINS = ["C", "CC", "CCC", "CC(C)", "CCCC", "CC(C)C", "C1CC1", "C1CCC1", "c1ccccc1", "CC(=O)C", "COC"]
ENDS = [
    "C",
    "N",
    "O",
    "F",
    "Cl",
    "C#N",
    "C=O",
    "C(=O)O",
    "C(N)=O",
    "OC",
    "NC",
    "SC",
    "C=C",
    "C(F)(F)F",
    "CO",
]
MOLECULES = sorted({chain + end for chain in CHAINS for end in ENDS})
"""About 150 simple molecules: a chain or ring, and a group at its end."""

NETWORK = {"latent": 6, "units": 32, "blocks": 1}
TRAINING = {
    "epochs": 60,
    "batch_size": 20,
    "learning_rate": 3e-3,
    "progress": False,
    "device": "cpu",
}


def refined(model: recmix.Model) -> recmix.Model:
    """The model with two steps of the refinement for class numbers, which raises the ELBO itself."""
    return model.refined(2, how="variational")


def main() -> None:
    """Train a VAE and RME on graphs and a VAE on strings, and print what they reach."""
    parser = argparse.ArgumentParser(description="Molecules as graphs and as strings.")
    parser.add_argument("--epochs", type=int, default=TRAINING["epochs"], help="epochs of each training")
    training = TRAINING | {"epochs": parser.parse_args().epochs}
    torch.set_num_threads(1)  # faster for networks of this size
    models = {}

    parts = MOLECULES[::2], MOLECULES[1::4], MOLECULES[3::4]  # training, validation, test
    graphs = recmix.data.from_texts(*parts, kind="molecule-graphs", length=10)
    print(f"graphs: {graphs.vocabulary}, examples of {graphs.shape[0]} class numbers")
    vae = recmix.fit("vae", graphs, free_bits=1.0, **NETWORK, **training)
    rme = recmix.fit("rme", graphs, init=vae, order=2, **training)
    models |= {"graphs, VAE": vae, "graphs, RME(2)": rme, "graphs, VAE, refined": refined(vae)}

    strings = recmix.data.from_texts(*parts, kind="smiles", length=20)
    print(f"strings: {strings.vocabulary}")
    vae = recmix.fit("vae", strings, free_bits=1.0, **NETWORK, **training)
    models |= {"strings, VAE": vae, "strings, VAE, refined": refined(vae)}

    table = Table(title=f"\n{len(graphs.x_test)} test molecules; shares in per cent")
    heads = ("ELBO", "IWAE-100", "reconstructed", "valid", "unique", "novel")
    for head in ("model", *heads):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name, model in models.items():
        data = graphs if name.startswith("graphs") else strings
        elbo, iwae = (bound.mean().item() for bound in model.bounds(data.x_test[:], samples=100))
        found = molecule_scores(model, data.x_test, parts[0], encodings=2, decodings=2, samples=200)
        shares = (found.reconstruction, found.validity, found.uniqueness, found.novelty)
        table.add_row(name, f"{elbo:.2f}", f"{iwae:.2f}", *(f"{100 * share:.1f}" for share in shares))
    Console(width=100).print(table)
    print("Graphs and strings have different p(x): compare ELBOs within a kind only.")
    print("some molecules from the prior:", ", ".join(found.examples[:5]))


if __name__ == "__main__":
    main()
