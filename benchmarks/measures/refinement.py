"""Refined posteriors q(z | x): the time of each kind of refinement divided by the time of SA(4)."""

from __future__ import annotations

from benchmarks.measures.posteriors import Choice, compare_posteriors
from benchmarks.registry import Context, Measurement, benchmark
from recmix.inference import Inference


def compare_refinement(context: Context, latent: int, how: str, steps: int) -> Measurement:
    """Time of a VAE's refined posterior divided by the time of the posterior of SA(4).

    ``detail.without_checks`` is the same ratio with `checks=0`: the refined posterior is then used for
    every example, and its ELBO is not compared with that of the encoder's posterior.
    """
    refined = Choice("vae", inference=Inference(how=how, refine=steps))
    unchecked = Choice("vae", inference=Inference(how=how, refine=steps, checks=0))
    semi_amortised = Choice("sa", {"steps": 4})
    return compare_posteriors(
        context, latent, refined, semi_amortised, more={"without_checks": unchecked}
    )


@benchmark(
    "posterior with 4 steps of learned refinement / posterior of SA(4), batch 128, dim 20",
    unit="ratio",
    target="<= 1.5",
)
def posterior_learned4_over_sa4_dim20(context: Context) -> Measurement:
    return compare_refinement(context, context.sizes.latent, "learned", 4)


@benchmark(
    "posterior with 6 steps of learned refinement / posterior of SA(4), batch 128, dim 50",
    unit="ratio",
    target="<= 1.5",
)
def posterior_learned6_over_sa4_dim50(context: Context) -> Measurement:
    return compare_refinement(context, context.sizes.wide, "learned", 6)


@benchmark(
    "posterior with 4 steps of variational refinement / posterior of SA(4), batch 128, dim 20",
    unit="ratio",
)
def posterior_variational4_over_sa4(context: Context) -> Measurement:
    return compare_refinement(context, context.sizes.latent, "variational", 4)


@benchmark(
    "posterior with 4 steps of conjugate refinement / posterior of SA(4), batch 128, dim 20",
    unit="ratio",
)
def posterior_conjugate4_over_sa4(context: Context) -> Measurement:
    return compare_refinement(context, context.sizes.latent, "conjugate", 4)
