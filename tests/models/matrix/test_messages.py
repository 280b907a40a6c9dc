"""What observers send before the first round, against dense matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem import FederatedMatrixImputer
from skfedem._data.cells import read_cells
from skfedem._federation import ClientRows
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.models.matrix import messages
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.start import cell_federation, low_rank_model

SHAPE = 30, 24
RNG = np.random.default_rng(0)
# Visits of observers: (times, sites, months). Long enough to sort sums in more than one way.
VISITS = [
    np.where(RNG.random((3, *SHAPE)) < share, RNG.poisson(4.0, (3, *SHAPE)), np.nan)
    for share in (0.6, 0.002, 0.1)
]


def federation_of_visits(client_weights="n_samples"):
    imputer = FederatedMatrixImputer(family="poisson")
    data = read_cells(imputer, VISITS, family=FAMILIES["poisson"])
    return cell_federation(data, client_weights)


@pytest.mark.parametrize("chosen", [[0, 1, 2], [1, 2], [0, 2]])
def test_messages_are_those_of_dense_matrices(chosen):
    federation = federation_of_visits()
    rows = ClientRows(federation, np.array(chosen), np.array(chosen))
    visits = [VISITS[k] for k in chosen]
    seen = [~np.isnan(own) for own in visits]
    codes = [np.flatnonzero(own.any(axis=0)) for own in seen]
    counts = [own.sum(axis=0).ravel()[code] for own, code in zip(seen, codes, strict=True)]
    assert_array_equal(messages.observed_cells(rows, SHAPE[1]), np.concatenate(codes))
    assert_array_equal(messages.numbers_of_observations(rows), np.concatenate(counts))
    before = federation.rows.columns.copy()
    for message, axis in ((messages.row_sums, 2), (messages.column_sums, 1)):
        lengths, lines, sums = message(rows, SHAPE[2 - axis])
        been = [own.any(axis=(0, axis)) for own in seen]
        # Nothing is sent of where a client was not.
        assert_array_equal(lengths, [own.sum() for own in been])
        assert_array_equal(lines, np.concatenate([np.flatnonzero(own) for own in been]))
        want = [np.nansum(own, axis=(0, axis)) for own in visits]
        assert_allclose(sums, np.concatenate(want)[np.concatenate(been)])
    assert_array_equal(federation.rows.columns, before)


@pytest.mark.parametrize("effects", ["both", "rows", "columns", "none"])
@pytest.mark.parametrize("client_weights", ["n_samples", "uniform"])
def test_the_server_knows_the_sums_of_all_observations(effects, client_weights):
    federation = federation_of_visits(client_weights)
    imputer = FederatedMatrixImputer(family="poisson", effects=effects)
    with Workers(1) as workers:
        clients = LocalClients(federation, workers)
        model = low_rank_model(imputer, clients, SHAPE)
    names = ["observed_cells", "numbers_of_observations", "log_base_measure"]
    names += ["row_sums"] * (effects in ("both", "rows"))
    names += ["column_sums"] * (effects in ("both", "columns"))
    assert [message.name for message in clients.messages] == names
    n_observations = np.array([np.count_nonzero(~np.isnan(own)) for own in VISITS])
    shares = 1.0 if client_weights == "n_samples" else 1 / n_observations
    shares = np.broadcast_to(shares, 3) * n_observations.sum() / (shares * n_observations).sum()
    counts, sums = (
        sum(share * function(own) for share, own in zip(shares, VISITS, strict=True))
        for function in (
            lambda own: (~np.isnan(own)).sum(axis=0),
            lambda own: np.nansum(own, axis=0),
        )
    )
    support, margins = model.pooled.support, model.pooled.margins
    # Rounding of sums of a thousand counts.
    close = {"rtol": 1e-13}
    assert_array_equal(support.rows * SHAPE[1] + support.columns, np.flatnonzero(counts))
    assert_allclose(support.counts, counts[counts > 0], **close)
    known = effects in ("both", "rows"), effects in ("both", "columns")
    assert_allclose(margins.rows, sums.sum(axis=1) * known[0], **close)
    assert_allclose(margins.columns, sums.sum(axis=0) * known[1], **close)
    assert model.pooled.total == pytest.approx(sums.sum() * any(known), rel=1e-13)
    assert_array_equal(
        np.flatnonzero(counts)[model.positions],
        messages.observed_cells(ClientRows(federation, np.arange(3), np.arange(3)), SHAPE[1]),
    )
