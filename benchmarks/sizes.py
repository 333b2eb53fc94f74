"""`Sizes`: how much is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes at which the cost of refinement is measured, and when a size is skipped.

    Args:
        repeats: repetitions for each size.
        seconds: duration of one block in one repetition.
        batch: images in a call, where another size varies.
        latents: dimensions of z; in the other measurements it is `Sizes.latent`.
        sides: image sizes, in pixels; in the other measurements `Sizes.shape`.
        batches: numbers of images in a call.
        examples: numbers of images that are processed one batch after another.
        call_limit: most seconds of one call.
        pass_limit: most seconds of a pass over all images.
        memory_limit: most bytes of one call.
    """

    repeats: int = 3
    seconds: float = 0.1
    batch: int = 128
    latents: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000)
    sides: tuple[int, ...] = (28, 48, 64, 128)
    batches: tuple[int, ...] = (1, 16, 128, 1024)
    examples: tuple[int, ...] = (1024, 4096, 16384, 65536)
    call_limit: float = 2.0
    pass_limit: float = 60.0
    memory_limit: int = 32 * 2**30


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
        gradient_latents: the dimensions of z in which two ways to a gradient are compared.
        nll_samples: samples per image in the comparison with pythae's IWAE.
        iwae_samples: samples per image of IWAE-5000.
        scale: sizes at which the cost of refinement is measured.
        paper_shapes: (C, H, W) of an image, for each data set of the paper's inference times.
        paper_batches: batches in a pass, for these times.
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
    gradient_latents: tuple[int, ...] = (10, 20, 26, 32, 40, 50)
    nll_samples: int = 100
    iwae_samples: int = 5000
    scale: Scale = Scale()
    paper_shapes: tuple[tuple[str, tuple[int, int, int]], ...] = (
        ("mnist", (1, 28, 28)),
        ("omniglot", (1, 28, 28)),
        ("cifar10", (3, 32, 32)),
        ("svhn", (3, 32, 32)),
        ("celeba", (3, 64, 64)),
    )
    paper_batches: int = 10


GPU = Sizes(
    repeats=15,
    seconds=0.15,
    steps=100,
    peer_steps=100,
    growth_repeats=7,
    growth_seconds=0.1,
    iwae_images=100,
    scale=Scale(seconds=0.05, examples=(1024, 4096, 16384), pass_limit=5.0),
)
CPU = Sizes(
    repeats=9,
    seconds=1.0,
    steps=8,
    peer_steps=20,
    growth_repeats=5,
    growth_seconds=0.5,
    iwae_images=8,
    scale=Scale(
        batch=16,
        examples=(256, 1024, 4096, 16384, 65536),
        pass_limit=15.0,
        memory_limit=4 * 2**30,
    ),
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
        scale=replace(
            usual.scale, latents=(10, 50, 200), sides=(28, 64), batches=(1, 16), examples=(256, 1024)
        ),
    )
