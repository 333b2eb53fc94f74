"""Put images with transparent pixels on a white background."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ON_WHITE", "may_be_transparent", "on_white", "opacity"]

ON_WHITE = "have transparent pixels, which are put on a white background"
"""Part of the note in `Data.notes` that names such images."""
_WITH_OPACITY = ("LA", "La", "PA", "RGBA", "RGBa")  # modes of pillow with a channel for it


def may_be_transparent(image: Any) -> bool:
    """Whether a pillow image can have transparent pixels. Its pixels need not be decoded."""
    return image.mode in _WITH_OPACITY or "transparency" in image.info


def opacity(image: Any) -> Any:
    """Return the opacity of each pixel as a pillow image, 0 to 255; None if all pixels are opaque."""
    if not may_be_transparent(image):
        return None
    if image.mode.startswith("I"):  # 16 bits; one grey value means transparent
        from PIL import Image

        seen = np.asarray(image) != image.info["transparency"]
        found = Image.fromarray(np.where(seen, 255, 0).astype(np.uint8))
    else:
        found = _with_opacity(image).getchannel("A")
    return None if found.getextrema()[0] == 255 else found


def on_white(image: Any, mask: Any) -> Any:
    """Return a colour image of 8 bits (RGB) without transparency, on a white background.

    >>> from PIL import Image
    >>> half = Image.new("LA", (1, 1), (0, 128))
    >>> on_white(half, opacity(half)).getpixel((0, 0))
    (127, 127, 127)

    Args:
        image: A pillow image of 8 bits.
        mask: Its opacity, see `opacity`.
    """
    from PIL import Image

    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(_with_opacity(image).convert("RGB"), mask=mask)
    return white


def _with_opacity(image: Any) -> Any:
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
