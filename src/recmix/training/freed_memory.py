"""Keeping freed memory while a model is trained on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["keep_freed_memory"]

# Parameters of mallopt, from the malloc.h of glibc.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
SET_BY_USER = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Environment variables that set the same parameters."""
USUAL_MAPPINGS = 65536
"""The default of MMAP_MAX in glibc: the largest number of arrays outside its heap."""
LARGEST = 2**25
"""Bytes of the largest array whose memory is kept when no model is trained, see `make_method.place`."""


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep the memory of freed arrays in this process, and return it to the system at the end.

    Each training step needs arrays of the same sizes. The C library returns arrays of more than 32 MiB
    to the system at once and has to take them again, page by page. This can take a quarter of a step.
    A training can need a little more memory this way. Only the C library of Linux (glibc) is set, and
    only if no environment variable of `SET_BY_USER` exists.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(MMAP_MAX, USUAL_MAPPINGS)
        library.mallopt(MMAP_THRESHOLD, LARGEST)
        library.mallopt(TRIM_THRESHOLD, 2 * LARGEST)
        library.malloc_trim(0)


def _glibc() -> Any:
    """The C library of this process; None if it is not glibc, or if its user has set it."""
    if sys.platform != "linux" or any(name in os.environ for name in SET_BY_USER):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
