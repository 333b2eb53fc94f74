"""`Training`: the options of training, such as epochs and learning rate, with their help texts."""

from __future__ import annotations

from dataclasses import dataclass

from recmix.errors import ConfigError
from recmix.model.options import Options, option

__all__ = ["Training"]


@dataclass(frozen=True, kw_only=True)
class Training(Options):
    """Options of training. `None` means a default that depends on the stage.

    The first stage trains a model without `init`. Its defaults are those of the paper: Adam with
    the learning rate 5e-4 for up to 2000 epochs. The second stage continues from a trained model
    (`init`), with the learning rate 1e-6 for up to 20 epochs.
    """

    epochs: int | None = option(
        None, "Passes over the training data (default 2000, with init 20).", at_least=1
    )
    batch_size: int = option(128, "Examples per update.", at_least=1)
    optimizer: str = option(
        "adam",
        "adam, or muon (orthogonalised momentum for matrices; needs fewer epochs, at a learning rate "
        "near 1e-3, and overfits sooner).",
        choices=["adam", "muon"],
    )
    learning_rate: float | None = option(None, "Learning rate (default 5e-4, with init 1e-6).", above=0)
    schedule: str = option(
        "constant",
        "Learning rate over time: constant, or cosine or linear decay to final_rate.",
        choices=["constant", "cosine", "linear"],
    )
    final_rate: float = option(
        0.01, "Learning rate at the end of the decay, as a share of the first.", at_least=0, at_most=1
    )
    warmup: int = option(0, "Epochs over which the learning rate rises to its value.", at_least=0)
    kl_warmup: int = option(
        0,
        "Epochs over which the weight of the KL in the loss rises linearly from 0 to 1, against "
        "posterior collapse. If a VAE is trained first, the option is for this VAE.",
        at_least=0,
    )
    free_bits: float = option(
        0.0,
        "Nats per latent dimension below which the KL, averaged over the batch, is not reduced, against "
        "posterior collapse. If a VAE is trained first, the option is for this VAE.",
        at_least=0,
    )
    patience: int = option(
        50, "Stop after this many epochs without a better validation bound; 0 never stops.", at_least=0
    )
    validation_samples: int = option(
        5, "K of the validation bound (IWAE-K) that selects the best epoch.", at_least=1
    )
    keep_weights: str = option(
        "best",
        "Weights to keep: of the epoch with the best validation bound, or of the last epoch (then "
        "nothing stops early).",
        choices=["best", "last"],
    )
    variance_rate: float = option(
        20.0, "Learning rate of the likelihood's variance, relative to the networks'.", at_least=0
    )
    fresh_rate: float | None = option(
        None,
        "In the second stage: learning rate of parameters that do not come from init, relative to the "
        "others' (for the random components of me 500, at most the rate 5e-4; 1 otherwise).",
        at_least=0,
    )
    objective: str = option(
        "elbo",
        "What the decoder maximises: elbo, or iwae under the method's posterior.",
        choices=["elbo", "iwae"],
    )
    objective_samples: int = option(5, "K of the iwae objective.", at_least=1)
    train: str = option(
        "all",
        "What is trained: all, encoder (the decoder stays as it is), or curvature (only the network "
        "that predicts the posterior's covariance; see the method curvature).",
        choices=["all", "encoder", "curvature"],
    )
    augment: float = option(
        0.0,
        "Share of each batch that is replaced by rotated, scaled, sheared and shifted images. Needs "
        "train = encoder.",
        at_least=0,
        at_most=1,
    )
    decoder_samples: float = option(
        0.0,
        "Share of each batch that is replaced by decoder outputs for points near the data's posterior "
        "means. Needs train = encoder.",
        at_least=0,
        at_most=1,
    )
    distil: float = option(
        0.0,
        "Share of distillation in the encoders' loss: they are fitted to samples of their own refined "
        "posterior. The decoder is trained as without.",
        at_least=0,
        at_most=1,
    )
    distil_steps: int = option(2, "Gauss-Newton steps of the refinement for distil.", at_least=1)
    weight_average: float = option(
        0.0,
        "Decay of a moving average of the weights, such as 0.999; the averages are validated and kept. "
        "0 means no average.",
        at_least=0,
        below=1,
    )
    max_gradient_norm: float = option(
        0.0, "Clip the norm of each update's gradient to this; 0 does not clip.", at_least=0
    )
    seed: int = option(
        0, "Seed of the initial weights, the order of the data and the noise.", at_least=0, below=2**63
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:1 and so on.")
    dtype: str = option("float32", "float32 or float64.", choices=["float32", "float64"])
    engine: str = option(
        "auto",
        "How updates run: auto, eager, graph (one CUDA graph) or compile (a graph of fewer kernels; "
        "slower to start).",
        choices=["auto", "eager", "graph", "compile"],
    )
    deterministic: bool = option(
        False,
        "Give the same bits each time, also on a GPU and after a resume, on the same device with the "
        "same versions. Slower. An operation that cannot do this is named.",
    )
    checkpoint_every: int = option(1, "Epochs between checkpoints.", at_least=1)
    tensorboard: bool = option(False, "Also write TensorBoard event files into the run folder.")

    @property
    def changes_kl(self) -> bool:
        """Whether `kl_warmup` or `free_bits` changes the KL in the loss."""
        return bool(self.kl_warmup or self.free_bits)

    def check(self) -> None:
        """Raise a ConfigError if options contradict each other."""
        if self.deterministic and self.engine == "compile":
            raise ConfigError(
                "the engine compile chooses kernels by their speed, so its bits may differ each time: "
                "leave deterministic out, or use the engine graph or eager"
            )
        if self.augment + self.decoder_samples > 1:
            raise ConfigError(
                "augment and decoder_samples are shares of one batch, at most 1 together; "
                f"got {self.augment} and {self.decoder_samples}"
            )
        if (self.augment or self.decoder_samples) and self.train == "all":
            raise ConfigError(
                "augment and decoder_samples add examples that are not data: give train = 'encoder', so "
                "that the decoder does not learn them"
            )
