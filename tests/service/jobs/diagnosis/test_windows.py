"""The running sums with which a diagnosis of a long run takes a time linear in its steps."""

import random
from math import sqrt
from statistics import fmean, linear_regression

import pytest

from service.jobs.diagnosis.windows import changes_so_far, means_so_far


def test_changes_so_far_are_those_of_a_fit_to_the_first_points() -> None:
    noise = random.Random(1)
    points = [(3 * k + 1, noise.gauss(0.01 * k, 0.1)) for k in range(60)]
    for num in (3, 20, 60):
        steps, values = zip(*points[:num], strict=True)
        line = linear_regression(steps, values)
        rest = sum((value - line.intercept - line.slope * step) ** 2 for step, value in points[:num])
        squares = sum((step - fmean(steps)) ** 2 for step in steps)
        length = steps[-1] - steps[0]
        expected = (line.slope * length, length * sqrt(rest / (num - 2) / squares))
        assert changes_so_far(points)[num - 1] == pytest.approx(expected)


def test_means_so_far_are_those_of_the_first_values() -> None:
    assert means_so_far([(1, 0.5), (2, 1.0), (7, 0.0)]) == [0.5, 0.75, 0.5]
