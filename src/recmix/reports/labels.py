"""Where the labels of a chart go, so that none covers another or a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Box", "place_labels"]

GAPS = (6.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0, 100.0, 130.0, 170.0, 220.0)
TURNS = 24
MARK = 5.0
CROWD = 45.0
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its lower left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> Point:
        """Its middle."""
        return self.x + self.width / 2, self.y + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Whether two rectangles share an area."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def within(self, other: Box) -> bool:
        """Whether it lies inside another."""
        return (
            self.x >= other.x
            and self.y >= other.y
            and self.x + self.width <= other.x + other.width
            and self.y + self.height <= other.y + other.height
        )

    def nearest(self, point: Point) -> Point:
        """The point of the rectangle that is nearest to one outside."""
        x = min(max(point[0], self.x), self.x + self.width)
        return x, min(max(point[1], self.y), self.y + self.height)

    def distance(self, point: Point) -> float:
        """From a point to the rectangle."""
        return math.dist(self.nearest(point), point)

    def crossed(self, start: Point, end: Point) -> bool:
        """Whether the way between two points leads through it."""
        for step in range(1, 12):
            x = start[0] + (end[0] - start[0]) * step / 12
            y = start[1] + (end[1] - start[1]) * step / 12
            if self.x < x < self.x + self.width and self.y < y < self.y + self.height:
                return True
        return False


def place_labels(
    points: Sequence[Point], sizes: Sequence[tuple[float, float]], bounds: Box
) -> list[Box | None]:
    """A rectangle for each label: the cheapest free place around its point.

    A place costs its distance, and more where another point is nearer or where the way to the point
    crosses a label. Crowded points choose first. A label without a free place gets None.

    Args:
        points: of the chart.
        sizes: width and height of each label, in the same unit.
        bounds: where labels may lie.
    """
    marks = [Box(x - MARK, y - MARK, 2 * MARK, 2 * MARK) for x, y in points]
    crowd = [sum(math.dist(p, q) < CROWD for q in points) for p in points]
    order = sorted(range(len(points)), key=lambda i: (-crowd[i], -points[i][1], points[i][0]))
    placed: list[Box | None] = [None] * len(points)
    for i in order:
        taken = [box for box in placed if box is not None]
        placed[i] = _cheapest(i, points, sizes[i], bounds, marks, taken)
    return placed


def _cheapest(
    i: int,
    points: Sequence[Point],
    size: tuple[float, float],
    bounds: Box,
    marks: Sequence[Box],
    taken: Sequence[Box],
) -> Box | None:
    (x, y), (width, height) = points[i], size
    best, cheapest = None, math.inf
    for gap in GAPS:
        if gap > cheapest:
            break
        for turn in range(TURNS):
            angle = 2 * math.pi * turn / TURNS
            cx = x + math.cos(angle) * (gap + width / 2)
            cy = y + math.sin(angle) * (gap + height / 2)
            box = Box(cx - width / 2, cy - height / 2, width, height)
            if not box.within(bounds) or any(box.overlaps(other) for other in (*marks, *taken)):
                continue
            own = box.distance(points[i])
            rivals = sum(
                box.distance(point) < own + 3 for other, point in enumerate(points) if other != i
            )
            crossed = sum(other.crossed(points[i], box.centre) for other in taken)
            cost = gap + 9 * rivals + 40 * crossed + 2 * (1 - math.cos(angle))
            if cost < cheapest:
                best, cheapest = box, cost
    return best
