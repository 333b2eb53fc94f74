"""Peak memory of an IWAE estimate and of the Laplace posterior."""

from __future__ import annotations

from benchmarks import peak
from benchmarks.registry import Context, Measurement, benchmark
from recmix.evaluation.bounds import MEMORY

MIB = 2**20


@benchmark(
    "peak memory of IWAE-5000 under RME(5), dim 50, with 256 MiB set for the decoder",
    unit="MiB",
    target=f"<= {MEMORY // MIB}",
)
def iwae5000_peak_memory(context: Context) -> Measurement:
    s = context.sizes
    fixed = {"order": s.order, "latent": s.wide, "shape": s.shape, "images": s.iwae_images}

    def measure(samples: int, allowed: int) -> float:
        sizes = {"samples": samples, "memory": allowed, **fixed}
        return peak.peak_bytes(context.device, "iwae", **sizes) / MIB

    counts = [max(1, s.iwae_samples // 10), s.iwae_samples]
    peaks = {samples: measure(samples, MEMORY) for samples in counts}
    detail = {
        "samples": peaks,
        "set_mib": MEMORY / MIB,
        "with_a_quarter_set": measure(s.iwae_samples, MEMORY // 4),
        **fixed,
    }
    return Measurement(peaks[s.iwae_samples], 0.0, detail)


@benchmark(
    "peak memory of the Laplace posterior, 2 steps, batch 128, dim 50, 64x64x3",
    unit="MiB",
    target="<= 4096",
)
def laplace_peak_memory(context: Context) -> Measurement:
    s = context.sizes
    sizes = {"steps": 2, "latent": s.wide, "shape": s.colour, "batch": s.batch}
    return Measurement(peak.peak_bytes(context.device, "laplace", **sizes) / MIB, 0.0, sizes)
