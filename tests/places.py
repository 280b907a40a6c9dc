"""Clients at several places, each of which has the rows of its own clients only."""

import numpy as np

from problems import federation_of, group_of, index_of, kept_by
from skfedem._serialization import from_bytes, to_bytes
from skfedem.clients.group import client_half, decoded, encoded
from skfedem.clients.local import LocalClients
from skfedem.clients.sums import aggregate, segments_of_all, weighted_total
from skfedem.solvers.base import NoStates


class Place:
    """Some clients, numbered from 0 here; ``ids`` are their numbers among all."""

    def __init__(self, federation, ids):
        self.federation, self.ids = federation_of(federation, ids), np.asarray(ids)
        self.controls, self.states = np.empty(0), NoStates()

    def join(self, solver, task):
        self.solver, self.task = solver, task
        if task.has_controls:
            self.controls = task.model.vectors(self.federation).zeros()
        self.states = solver.init(task, self.federation)

    def answers(self, broadcast, active):
        """Bytes of the message of each client that is active here, by its number."""
        here = np.flatnonzero(np.isin(self.ids, active))
        model, sent, self.prepared = self.task.model, {}, []
        for k in here:
            group = group_of(self.solver, model, self.federation, self, k)
            group = group._replace(ids=self.ids[[k]])
            message, controls, states = client_half(self.solver, self.task, broadcast, group)
            self.prepared.append((k, {**states._asdict(), "controls": controls}))
            sent[int(self.ids[k])] = to_bytes(encoded(self.solver, self.task, broadcast, message))
        return sent

    def by_client(self, here, vectors):
        """Vectors by the numbers of the clients."""
        each = [slice(k, k + 1) for k in range(len(here))]
        own = self.task.model.vectors(self.federation).split(here, each)
        return {i: vectors[at] for i, at in zip(self.ids[here].tolist(), own, strict=True)}

    def commit(self):
        for here, new in self.prepared:
            for name, field in {**self.states._asdict(), "controls": self.controls}.items():
                if field.size:
                    at = index_of(name, self.solver, self.task.model, self.federation, here)
                    field[at] = new[name]


class Places:
    """All clients, at several places; implements ``Clients`` without a set-up.

    The server gets the bytes of each client's message, and sums them as those of threads are.
    """

    def __init__(self, federation, groups):
        self.sizes = federation.sizes
        self.places = [Place(federation, ids) for ids in groups]

    def join(self, solver, task):
        self.solver, self.task, self.layout = solver, task, task.model.vectors(self.sizes)
        for place in self.places:
            place.join(solver, task)

    def round(self, broadcast, active):
        self.asked = [place for place in self.places if np.isin(place.ids, active).any()]
        sent = {}
        for place in self.asked:
            sent |= place.answers(broadcast, active)
        agreed = self.solver, self.task
        messages = [
            decoded(*agreed, broadcast, self.layout, i, from_bytes(sent[i]))
            for i in active.tolist()
        ]
        return aggregate(*agreed, self.sizes, active, messages)

    def commit(self, round_index):
        for place in self.asked:
            place.commit()
        self.asked = []

    def mean_field(self, model, parameters, reference, *, initial=False):
        vectors, likelihoods = {}, {}
        for place in self.places:
            every = np.arange(len(place.ids))
            estimate = model.all_rows(place.federation, parameters, every)
            fields = estimate.statistics - reference
            if initial:
                place.controls[...] = fields
            vectors |= place.by_client(every, fields)
            values = estimate.log_likelihood[:, None]
            likelihoods |= dict(zip(place.ids.tolist(), values, strict=True))
        every = np.arange(self.sizes.n_clients)
        fields, values = (
            np.concatenate([own[i] for i in every.tolist()]) for own in (vectors, likelihoods)
        )
        segments = segments_of_all(self.sizes.lengths, model.block_rows)
        field = weighted_total(self.layout, self.sizes, every, fields, segments)
        return field, float(self.sizes.weights @ values)

    def reset_control(self):
        """No V_i is ever lost."""

    def save(self):
        """Controls and states of each client, by their names."""
        saved = {}
        for place in self.places:
            at = place.solver, self.task.model, place.federation
            for k, i in enumerate(place.ids.tolist()):
                saved[i] = kept_by(*at, place, k)
        return saved


class Lossy(LocalClients):
    """Clients some of whose messages are lost after they were computed."""

    def round(self, broadcast, active):
        """Everyone who is active computes; the server gets the messages of some."""
        super().round(broadcast, active)
        generator = np.random.default_rng(broadcast.round_index)
        self.accepted = active[generator.random(len(active)) < 0.5]
        return super().round(broadcast, self.accepted)
