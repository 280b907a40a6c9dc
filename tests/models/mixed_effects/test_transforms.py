import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skfedem.models.mixed_effects.transforms import transform_of

GIVEN = ["identity", "log", ("logit", -1.0, 3.0), "probit"]


@pytest.mark.parametrize("given", GIVEN)
def test_transforms_and_their_inverses_and_slopes(given):
    transform = transform_of(given, "V")
    phi = np.linspace(-4, 4, 17)
    psi = transform.to_subject(phi)
    assert (np.diff(psi) > 0).all()
    assert transform.low <= psi.min() and psi.max() <= transform.high
    assert_allclose(transform.to_gaussian(psi), phi, rtol=1e-9, atol=1e-12)
    size = 1e-6
    slope = (transform.to_subject(phi + size) - transform.to_subject(phi - size)) / (2 * size)
    # Central differences of numbers of order 10.
    assert_allclose(transform.slope(phi), slope, rtol=1e-5, atol=1e-9)
    again = pickle.loads(pickle.dumps(transform))
    assert_allclose(again.to_subject(phi), psi, rtol=0)


def test_a_logit_lies_between_its_bounds():
    transform = transform_of(("logit", -1, 3), "V")
    assert_allclose(transform.to_subject(0.0), 1.0)
    assert_allclose(transform.to_subject(np.array([-800.0, 800.0])), [-1.0, 3.0])


@pytest.mark.parametrize("given", ["ln", ("logit", 3, 1), ("logit", 0), None, ("logit", "a", 2)])
def test_what_is_no_transform_is_refused(given):
    with pytest.raises(ValueError, match="Expected transform of 'V' to be"):
        transform_of(given, "V")
