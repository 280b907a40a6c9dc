"""Clients at several places, each of which has the rows of its own clients only."""

import numpy as np

from problems import federation_of, group_of, index_of, kept_by
from skfedem.clients.group import client_half
from skfedem.clients.sums import segments_of, segments_of_all, shards_of
from skfedem.solvers.base import AggregatedMessages, NoStates


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

    def answer(self, broadcast, active):
        """Message of those who are active here, and their vectors by their numbers."""
        here = np.flatnonzero(np.isin(self.ids, active))
        group = group_of(self.solver, self.task.model, self.federation, self, here)
        group = group._replace(ids=self.ids[here])
        message, controls, states = client_half(self.solver, self.task, broadcast, group)
        self.prepared = here, {**states._asdict(), "controls": controls}
        return message, self.by_client(here, message.quantized)

    def by_client(self, here, vectors):
        """Vectors by the numbers of the clients."""
        each = [slice(k, k + 1) for k in range(len(here))]
        own = self.task.model.vectors(self.federation).split(here, each)
        return {i: vectors[at] for i, at in zip(self.ids[here].tolist(), own, strict=True)}

    def commit(self):
        here, new = self.prepared
        for name, field in {**self.states._asdict(), "controls": self.controls}.items():
            if field.size:
                at = index_of(name, self.solver, self.task.model, self.federation, here)
                field[at] = new[name]


class Places:
    """All clients, at several places; implements ``Clients`` without a set-up.

    The server gets a message of each client, and sums them as the sums of threads are defined.
    """

    def __init__(self, federation, groups):
        self.sizes, self.federation = federation.sizes, federation  # for the layout, not the rows
        self.places = [Place(federation, ids) for ids in groups]

    def join(self, solver, task):
        self.task, self.layout = task, task.model.vectors(self.federation)
        for place in self.places:
            place.join(solver, task)

    def total(self, vectors, segments):
        clients = np.array(sorted(vectors), dtype=int)
        terms = []
        for own in segments.slices:
            stacked = np.concatenate([vectors[i] for i in clients[own].tolist()])
            weights = self.sizes.weights[clients[own]]
            terms.append(self.layout.weighted(weights, clients[own], stacked))
        return self.layout.total(clients, terms, segments.shards)

    def mean(self, clients, values):
        """Σ w_i times numbers of clients, if they were sent."""
        if any(own is None for own in values.values()) or not values:
            return np.nan
        return self.sizes.weights[clients] @ np.array([values[i] for i in clients.tolist()])

    def round(self, broadcast, active):
        self.asked = [place for place in self.places if np.isin(place.ids, active).any()]
        vectors, likelihoods, messages = {}, {}, []
        for place in self.asked:
            message, own = place.answer(broadcast, active)
            values = message.log_likelihood
            likelihoods |= dict(
                zip(own, [None] * len(own) if values is None else values, strict=True)
            )
            vectors |= own
            messages.append(message)
        model, batch_size = self.task.model, self.task.batch_size
        n_rows = self.sizes.lengths[active]
        if batch_size is not None:
            n_rows = np.full(len(active), batch_size)
        shards = shards_of(self.sizes.lengths, model.block_rows)
        segments = segments_of(active, n_rows, shards, model.block_rows)
        return AggregatedMessages(
            message_sum=self.total(vectors, segments),
            n_active=len(active),
            n_bytes=sum(message.n_bytes for message in messages),
            n_expectations=sum(message.n_expectations for message in messages),
            log_likelihood=self.mean(active, likelihoods),
        )

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
            likelihoods |= dict(zip(place.ids.tolist(), estimate.log_likelihood, strict=True))
        every = np.arange(self.sizes.n_clients)
        segments = segments_of_all(self.sizes.lengths, model.block_rows)
        return self.total(vectors, segments), float(self.mean(every, likelihoods))

    def save(self):
        """Controls and states of each client, by their names."""
        saved = {}
        for place in self.places:
            at = place.solver, self.task.model, place.federation
            for k, i in enumerate(place.ids.tolist()):
                saved[i] = kept_by(*at, place, k)
        return saved
