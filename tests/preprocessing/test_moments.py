"""Messages of clients for the scaler and principal components."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from preprocessed import CLIENTS, N_FEATURES, X
from skfedem._federation import ClientRows, Federation, offsets_of
from skfedem.preprocessing import _moments

HOLES = [np.where(np.random.default_rng(k).random(own.shape) < 0.2, np.nan, own)
         for k, own in enumerate(CLIENTS)]  # fmt: skip


def rows_of(tables):
    """Rows of some clients at one place."""
    lengths = np.array([len(own) for own in tables])
    federation = Federation(np.vstack(tables), offsets_of(lengths), lengths / lengths.sum())
    return ClientRows(federation, np.arange(len(tables)), np.arange(len(tables)))


@pytest.mark.parametrize("tables", [CLIENTS, HOLES])
def test_clients_send_alone_what_they_send_in_a_group(tables):
    center = np.linspace(-1, 1, N_FEATURES)
    for message, arguments in (
        (_moments.counts, ()),
        (_moments.counts_and_sums, ()),
        (_moments.centred_sums, (center, None)),
        (_moments.centred_sums, (center, "squares")),
        (_moments.centred_sums, (center, "products")),
    ):
        one_by_one = [message(rows_of([own]), *arguments)[0] for own in tables]
        assert_array_equal(message(rows_of(tables), *arguments), one_by_one)


def test_messages_have_counts_sums_and_products():
    y = X - 0.5
    sent = _moments.centred_sums(rows_of(CLIENTS), np.full(N_FEATURES, 0.5), "products")
    found, triangle = sent.sum(axis=0), (y.T @ y)[np.triu_indices(N_FEATURES)]
    assert_allclose(found, [*y.sum(axis=0), *triangle], rtol=1e-12, atol=1e-11)
    missing = [np.isnan(own) for own in HOLES]
    want = [[len(own), own.any(), *(len(own) - own.sum(axis=0))] for own in missing]
    assert_array_equal(_moments.counts(rows_of(HOLES)), want)
