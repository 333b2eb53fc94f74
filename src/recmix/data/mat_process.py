"""Read arrays of a MATLAB file in a separate process; `recmix.data.formats.read_mat` starts it.

A damaged file can crash `scipy.io.loadmat`. Here the crash ends only this process. The module is run as
a script and imports nothing of recmix, so that it starts fast. The arguments of the script are a folder,
the largest number of bytes, and the names of arrays. The script reads the MATLAB file from standard
input, and writes the arrays of numbers into the folder: the array with the first of these names to
0.npy, the one with the second name to 1.npy, and so on.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

__all__: list[str] = []

_HEADER_BYTES = 128  # of an .npy file
_OWN_BYTES = 1 << 30  # address space of Python, numpy and scipy


def _limit(most: int) -> None:
    """Limit the memory of this process and the size of the files that it writes.

    `most` is the largest number of bytes of a file. Nothing is limited on a system that cannot do this.
    """
    with contextlib.suppress(ImportError):
        import resource

        for name, value in (
            ("RLIMIT_CORE", 0),
            ("RLIMIT_FSIZE", most),
            ("RLIMIT_AS", 2 * most + _OWN_BYTES),  # the file and its arrays
        ):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                hard = resource.getrlimit(getattr(resource, name))[1]
                limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(getattr(resource, name), (limit, hard))


def _main(folder: str, most: str, *keys: str) -> None:
    import numpy as np
    from scipy.io import loadmat

    _limit(int(most))
    stream: Any = io.BytesIO(sys.stdin.buffer.read())  # loadmat's type annotations allow paths only
    found = loadmat(stream, variable_names=list(keys))
    arrays: dict[int, Any] = {}
    for number, key in enumerate(keys):
        array = found.get(key)
        if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
            arrays[number] = array
    needed = sum(array.nbytes + _HEADER_BYTES for array in arrays.values())
    if needed > int(most):
        raise ValueError(f"its arrays need {needed} bytes, expected at most {most}")
    for number, array in arrays.items():
        np.save(os.path.join(folder, f"{number}.npy"), array, allow_pickle=False)


if __name__ == "__main__":
    try:
        _main(*sys.argv[1:])
    except MemoryError:
        sys.exit("it needs too much memory, or its header is damaged")
    except Exception as error:  # scipy raises many different types
        sys.exit(str(error) or type(error).__name__)
