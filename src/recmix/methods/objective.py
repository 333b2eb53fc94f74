"""The class `Objective`: options that change what a training step maximises."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from recmix.inference import Inference

__all__ = ["ELBO", "Objective"]

NO_REFINEMENT, TWO_STEPS = Inference(), Inference(refine=2)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Options that change what the decoder and the encoders maximise in a training step.

    The default values do not change the method's own objective.

    Attributes:
        iwae_samples: if not 0, the decoder maximises the IWAE bound with this number of samples.
        inference: settings of the refinement of the posterior. If there are refinement steps, the
            decoder is trained on the refined posterior.
        distil: weight of the distillation loss in the encoders' loss, 0 to 1.
        teacher: settings of the refinement for distillation. Distillation fits the encoders to samples
            of the refined posterior.
        kl_weight: if not None, the weight of the KL in the ELBO, a scalar tensor on the device. It may
            change between steps.
        free_bits: the KL of a latent dimension is not reduced below this value, in nats. It has an
            effect only with `kl_weight`. See `recmix.objectives.weighted_elbo`.
    """

    iwae_samples: int = 0
    inference: Inference = NO_REFINEMENT
    distil: float = 0.0
    teacher: Inference = TWO_STEPS
    kl_weight: Tensor | None = field(default=None, compare=False)
    free_bits: float = 0.0

    @property
    def separate_decoder(self) -> bool:
        """Whether decoder and encoders have different objectives.

        This is true if `iwae_samples` is not 0 or if `inference` has refinement steps.
        """
        return bool(self.iwae_samples or self.inference.refine)


ELBO = Objective()
"""The method's own objective, without changes."""
