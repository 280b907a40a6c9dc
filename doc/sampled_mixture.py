"""A solver with a Monte Carlo E-step: the component of each row is a Markov chain.

In each round, every row proposes another component, which a Metropolis step accepts or not, and the
client sends the statistics of the components that its rows are in. The chains stay with the client,
one per row, and go on in the client's next active round.
"""

from typing import NamedTuple

import numpy as np

from skfedem import _random
from skfedem._federation import positions_of
from skfedem.models._base import Estimate
from skfedem.models.client_rows import multiplied_by_client
from skfedem.solvers.base import Solver, row_keys


class Chains(NamedTuple):
    """The component that each row is in."""

    components: np.ndarray


def init(task, federation):
    """Chains before the first round."""
    return Chains(np.zeros(federation.n_samples, dtype=int))


def estimate(task, broadcast, group, n_steps=3):
    """Mean statistics of each client, given a state of its chains."""
    model, federation, clients = task.model, group.federation, group.clients
    lengths, every = federation.lengths_of(clients), np.arange(len(group.states.components))
    rows = federation.rows.take(positions_of(federation.offsets[clients], lengths), axis=0)
    features = model.client_features(rows, lengths)
    natural = broadcast.parameters.natural.reshape(1, model.n_components, -1)
    log_joint = multiplied_by_client(natural, features, lengths)
    address = task.seed, _random.CHAINS, broadcast.round_index
    uniforms = _random.row_uniforms(*address, row_keys(group), 2 * n_steps).T
    components = group.states.components.copy()
    for proposals, levels in zip(uniforms[::2], uniforms[1::2], strict=True):
        proposed = (proposals * model.n_components).astype(int)
        gain = log_joint[proposed, every] - log_joint[components, every]
        components = np.where(np.log1p(-levels) < gain, proposed, components)
    posterior = np.equal(components, np.arange(model.n_components)[:, None]).astype(float)
    statistics = model.assigned(posterior, features, lengths) / lengths[:, None]
    return Estimate(statistics, None, len(every)), Chains(components)


SAMPLED = Solver("sampled", estimate, init, per_row=("components",), is_random=True)
