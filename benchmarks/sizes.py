"""`Sizes`: how much is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How often, how long and on what sizes the benchmarks run.

    Args:
        repeats: repetitions of each ratio.
        seconds: duration of one block in one repetition.
        steps: largest number of training steps in a block.
        peer_steps: training steps per epoch, in the comparison with pythae.
        growth_repeats: repetitions for each order, latent dimension and image size.
        growth_seconds: duration of one such block.
        iwae_images: images whose IWAE-5000 is estimated.
        nll_images: images in the comparison with pythae's IWAE.
        nll_parts: number of parts in which these images are evaluated.
        batch: images in a batch.
        order: order of the recursive mixture.
        latent: dimension of z.
        wide: the larger dimension of z.
        shape: (C, H, W) of an image.
        colour: (C, H, W) of a larger image.
        replicas: number of trainings at once.
        replica_counts: the numbers of trainings at once whose throughput is measured.
        orders: the orders at which growth is measured.
        latents: the same for dimensions of z.
        sides: the same for image sizes, in pixels.
        nll_samples: samples per image in the comparison with pythae's IWAE.
        iwae_samples: samples per image of IWAE-5000.
    """

    repeats: int
    seconds: float
    steps: int
    peer_steps: int
    growth_repeats: int
    growth_seconds: float
    iwae_images: int
    nll_images: int = 1000
    nll_parts: int = 10
    batch: int = 128
    order: int = 5
    latent: int = 20
    wide: int = 50
    shape: tuple[int, int, int] = (1, 28, 28)
    colour: tuple[int, int, int] = (3, 64, 64)
    replicas: int = 16
    replica_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    orders: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    latents: tuple[int, ...] = (10, 20, 50, 100)
    sides: tuple[int, ...] = (28, 32, 48, 64)
    nll_samples: int = 100
    iwae_samples: int = 5000


GPU = Sizes(
    repeats=15,
    seconds=0.25,
    steps=100,
    peer_steps=100,
    growth_repeats=7,
    growth_seconds=0.1,
    iwae_images=100,
)
CPU = Sizes(
    repeats=9,
    seconds=1.0,
    steps=8,
    peer_steps=20,
    growth_repeats=5,
    growth_seconds=0.5,
    iwae_images=8,
)


def usual_sizes(device: str, *, quick: bool) -> Sizes:
    """The usual amounts on this type of device; fewer if `quick`."""
    usual = GPU if device == "cuda" else CPU
    if not quick:
        return usual
    return replace(
        usual,
        repeats=3,
        seconds=usual.seconds / 2,
        peer_steps=usual.peer_steps // 2,
        growth_repeats=2,
        growth_seconds=usual.growth_seconds / 2,
        iwae_images=max(4, usual.iwae_images // 4),
        nll_images=100,
        nll_parts=3,
    )
