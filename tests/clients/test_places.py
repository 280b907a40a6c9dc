"""Clients in threads, against clients at other places: the same bits wherever they are."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from contracts import assert_same, every_setting, every_solver
from places import Places
from problems import kept_by, make_problem
from skfedem._federation import ClientRows, Federation, offsets_of
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.models.mixture.messages import second_moment
from skfedem.solvers._loop import Options, run

GROUPS = {
    "one by one": [[i] for i in range(6)],
    "mixed": [[0, 2, 5], [1, 3, 4]],
}


def run_of(solver, problem, start, clients):
    """Run of a few rounds, some of which are evaluated."""
    clients.join(solver, problem.task)
    options = Options(step_size=lambda k: 0.05, max_iter=3, tol=0.0, eval_every=2)
    return run(problem._replace(solver=solver), start, options, clients, lambda row: None)


@every_solver
@every_setting
def test_bits_do_not_depend_on_where_clients_are(case, solver, setting, monkeypatch):
    # At most three rows at a time: the 48 rows are four shards, most with several segments.
    monkeypatch.setattr(type(case.model), "block_rows", 3)
    problem = make_problem(case.model, case.federation, setting, random_estimates=solver.is_random)
    states = []
    for n_jobs in (1, 3):
        with Workers(n_jobs) as workers:
            clients = LocalClients(case.federation, workers)
            states.append(run_of(solver, problem, case.starts[0], clients))
    want = states[0]
    kept = [
        kept_by(solver, case.model, case.federation, AtTheEnd(**want.clients), i) for i in range(6)
    ]
    for groups in GROUPS.values():
        state = run_of(solver, problem, case.starts[0], Places(case.federation, groups))
        for i, own in enumerate(kept):
            assert state.clients[i].keys() == own.keys()
            for name, values in own.items():
                assert_array_equal(state.clients[i][name], values, err_msg=name)
        states.append(state)
    for state in states[1:]:
        assert_same(state.server, want.server)
        for name, column in want.history.as_dict().items():
            assert_array_equal(state.history[name], column, err_msg=name)


class AtTheEnd(NamedTuple):
    """What clients keep at the end of a run."""

    controls: np.ndarray
    states: NamedTuple


@pytest.mark.parametrize("d", [1, 2, 5])
def test_moments_of_clients_do_not_depend_on_the_group(d):
    # Some clients have equally many rows, whose products are taken together.
    generator = np.random.default_rng(d)
    lengths = generator.integers(1, 8, size=20)
    rows, offsets = generator.normal(3, 1, (lengths.sum(), d)), offsets_of(lengths)
    together = Federation(rows, offsets, lengths / lengths.sum())
    every, center = np.arange(20), np.ones(d)
    want = second_moment(ClientRows(together, every, every), center, True)
    for i in range(20):
        own = Federation(rows[offsets[i] : offsets[i + 1]], np.array([0, lengths[i]]), np.ones(1))
        alone = second_moment(ClientRows(own, every[:1], every[i : i + 1]), center, True)
        assert_array_equal(alone[0], want[i])
