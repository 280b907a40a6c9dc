"""Clients in processes of their own, which exchange only bytes with the server.

``PipeClients`` takes the place of the clients in threads: set-up, rounds, evaluation and stopping
are those of the simulation, bit for bit. A client stores its new state as prepared before it
answers, and commits it when the server says that it has closed the round; if its process dies in
between, another one goes on from the files. This file uses private functions of skfedem, which may
change; the tests run it.
"""

import os
from functools import reduce
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from skfedem._federation import ClientRows, ClientSizes
from skfedem._history import FLOAT_BITS
from skfedem._imputer.residuals import pearson_products
from skfedem._parallel import single_threaded_libraries
from skfedem._serialization import from_bytes, to_bytes
from skfedem.clients.group import client_half, decoded, encoded
from skfedem.clients.local import SetUpMessage
from skfedem.clients.sums import (
    ROWS_OF_A_MEAN,
    aggregate,
    mean_of_terms,
    mean_term,
    segments_of_all,
    shards_of,
    sum_in_order,
    sum_of_shards,
    weighted_total,
)
from skfedem.models.matrix import messages as matrix
from skfedem.models.mixture import assignment
from skfedem.models.mixture import messages as mixture
from skfedem.preprocessing import _moments as moments
from skfedem.solvers._from_parameters import SOLVERS
from skfedem.solvers.base import Broadcast, ClientGroup
from skfedem.solvers.server import message_units_of

# What a client is willing to send before the first round.
SET_UP = {
    function.__name__: function
    for function in (
        mixture.mean_of_rows,
        mixture.second_moment,
        mixture.statistics_of_nearest,
        mixture.expected_statistics,
        assignment.centroids_of_rows,
        matrix.observed_cells,
        matrix.numbers_of_observations,
        matrix.log_base_measure,
        matrix.row_sums,
        matrix.column_sums,
        pearson_products,
        moments.counts,
        moments.counts_and_sums,
        moments.centred_sums,
    )
}


class Node:
    """A client: its rows, its number, its state, and a folder in which it survives a crash."""

    def __init__(self, federation, number, folder):
        self.federation = federation  # of this client alone
        self.me, self.ids, self.folder = np.array([0]), np.array([number]), Path(folder)
        if (self.folder / "committed").exists():
            self.load()

    def answer(self, request):
        """Bytes of the answer to a request."""
        return to_bytes(getattr(self, request["ask"])(**request["arguments"]))

    def sizes(self):
        """Number of rows."""
        return self.federation.n_samples

    def set_up(self, name, arguments):
        """Message before the first round."""
        return SET_UP[name](ClientRows(self.federation, self.me, self.ids), *arguments)

    def join(self, solver, task):
        """Agree on solver and task."""
        controls = task.model.vectors(self.federation).zeros()
        self.keep("committed", solver, task, controls, SOLVERS[solver].init(task, self.federation))
        self.load()

    def keep(self, name, *state):
        """Write a state, so that it is there as a whole or not at all."""
        (self.folder / "new").write_bytes(to_bytes(state))
        os.replace(self.folder / "new", self.folder / name)

    def load(self):
        """Read the committed state."""
        state = from_bytes((self.folder / "committed").read_bytes())
        self.solver, self.task, self.controls, states = state
        own = SOLVERS[self.solver].init(self.task, self.federation)
        self.states = type(own)(*states)

    def field(self, parameters, reference, initial):
        """h_i(Ŝ) and the mean log-likelihood; V_i := h_i(Ŝ) if ``initial``."""
        estimate = self.task.model.all_rows(self.federation, parameters, self.me)
        field = estimate.statistics - reference
        if initial:
            self.keep("committed", self.solver, self.task, field, tuple(self.states))
            self.load()
        return field, estimate.log_likelihood[0]

    def round(self, round_index, outer_loop, reference, parameters):
        """The client's half of a round: its message, with Quant(Δ_i) as bytes."""
        units = message_units_of(self.task, parameters)
        broadcast = Broadcast(round_index, outer_loop, reference, parameters, units)
        group = ClientGroup(self.federation, self.me, self.ids, self.controls, self.states)
        solver = SOLVERS[self.solver]
        message, controls, states = client_half(solver, self.task, broadcast, group)
        self.keep("prepared", self.solver, self.task, controls, tuple(states))
        return encoded(solver, self.task, broadcast, message)

    def commit(self):
        """The server has closed the round."""
        if (self.folder / "prepared").exists():
            os.replace(self.folder / "prepared", self.folder / "committed")
        self.load()

    def control(self):
        """V_i."""
        return self.controls


def serve(pipe, federation, number, folder):
    """Answer requests until the server hangs up."""
    with single_threaded_libraries():
        node = Node(federation, number, folder)
        while request := pipe.recv_bytes():
            pipe.send_bytes(node.answer(from_bytes(request)))


class PipeClients:
    """Clients in processes; what a server knows of them, and how their messages are summed."""

    context = get_context("spawn")

    def __init__(self, federations, folders):
        self.federations, self.folders = federations, folders
        self.pipes, self.processes = {}, {}
        for number in range(len(federations)):
            self.start(number)
        lengths = np.array(self.ask_all("sizes"))
        self.sizes = ClientSizes(lengths / lengths.sum(), lengths)
        self.messages, self.asked = [], np.arange(0)

    def start(self, number):
        """Start the process of a client; it goes on from its files, if it has any."""
        self.pipes[number], pipe = self.context.Pipe()
        arguments = pipe, self.federations[number], number, self.folders[number]
        self.processes[number] = self.context.Process(target=serve, args=arguments, daemon=True)
        self.processes[number].start()

    def stop(self):
        """Hang up."""
        for number, pipe in self.pipes.items():
            pipe.send_bytes(b"")
            self.processes[number].join()

    def crash(self, number):
        """Kill the process of a client, and start another one."""
        self.processes[number].kill()
        self.processes[number].join()
        self.start(number)

    def ask(self, numbers, name, /, **arguments):
        """Answers of some clients, who work at the same time."""
        request = to_bytes({"ask": name, "arguments": arguments})
        for number in numbers:
            self.pipes[number].send_bytes(request)
        return [from_bytes(self.pipes[number].recv_bytes()) for number in numbers]

    def ask_all(self, name, /, **arguments):
        """Answers of all clients."""
        return self.ask(range(len(self.federations)), name, **arguments)

    # ---- as the server of the simulation knows clients

    def set_up(self, message, arguments, clients=None, n_bits=None):
        """Messages of all clients, or of some, before the first round; they are counted."""
        clients = range(len(self.federations)) if clients is None else clients
        sent = self.ask(clients, "set_up", name=message.__name__, arguments=arguments)
        told = sum(value.size for value in arguments if isinstance(value, np.ndarray))
        uplink_bits = FLOAT_BITS * sum(np.size(own) for own in sent) if n_bits is None else n_bits
        counted = len(sent), uplink_bits, FLOAT_BITS * len(sent) * told
        self.messages.append(SetUpMessage(message.__name__, *counted))
        return sent

    def mean(self, message, *arguments):
        """Σ_i w_i m_i."""
        sent = np.concatenate(self.set_up(message, arguments))
        segments = segments_of_all(self.sizes.lengths, ROWS_OF_A_MEAN)
        terms = [mean_term(self.sizes.weights[own], sent[own]) for own in segments.slices]
        return mean_of_terms(terms, segments.shards)

    def sum(self, message, *arguments, n_bits=None):
        """Σ_i m_i."""
        sent = np.concatenate(self.set_up(message, arguments))
        shards = pairwise(shards_of(self.sizes.lengths))
        total = reduce(np.add, [sum_in_order(sent[first:last]) for first, last in shards])
        self.recount(total, n_bits)
        return total

    def gather(self, message, *arguments, n_bits=None):
        """Messages of all clients in order."""
        sent = self.set_up(message, arguments, n_bits=0 if n_bits else None)
        if isinstance(sent[0], tuple):
            gathered = tuple(np.concatenate(own) for own in zip(*sent, strict=True))
        else:
            gathered = np.concatenate(sent)
        self.recount(gathered, n_bits)
        return gathered

    def recount(self, received, n_bits):
        """Count the bits of the last messages by a function of what the server received."""
        if n_bits is not None:
            self.messages[-1] = self.messages[-1]._replace(uplink_bits=n_bits(received))

    def collect(self, message, clients, *arguments):
        """Messages of some clients, one by one."""
        return [own for (own,) in self.set_up(message, arguments, clients.tolist())]

    def tell(self, name, n_numbers, n_clients=None, n_sent=0):
        """Count numbers that clients receive, and have sent."""
        n_clients = len(self.federations) if n_clients is None else n_clients
        bits = FLOAT_BITS * n_clients
        self.messages.append(SetUpMessage(name, n_clients, bits * n_sent, bits * n_numbers))

    def bits(self, first=0):
        """Bits that clients sent and received so far."""
        new = self.messages[first:]
        return sum(own.uplink_bits for own in new), sum(own.downlink_bits for own in new)

    def join(self, solver, task):
        """Tell all clients solver and task."""
        self.solver, self.task, self.layout = solver, task, task.model.vectors(self.sizes)
        self.ask_all("join", solver=solver.name, task=task.for_clients())

    def round(self, broadcast, active):
        """Clients' half of a round."""
        self.asked, agreed = active, (self.solver, self.task)
        told = broadcast._asdict()
        del told["message_units"]
        answers = self.ask(active.tolist(), "round", **told)
        messages = [
            decoded(*agreed, broadcast, self.layout, client, answer)
            for client, answer in zip(active.tolist(), answers, strict=True)
        ]
        return aggregate(*agreed, self.sizes, active, messages)

    def commit(self, round_index):
        """Tell those who were asked that the round is closed."""
        self.ask(self.asked.tolist(), "commit")

    def mean_field(self, model, parameters, reference, *, initial=False):
        """h(Ŝ) and the mean log-likelihood, from all rows."""
        told = {"parameters": parameters, "reference": reference, "initial": initial}
        fields, log_likelihoods = zip(*self.ask_all("field", **told), strict=True)
        segments = segments_of_all(self.sizes.lengths, model.block_rows)
        every, vectors = np.arange(len(fields)), np.concatenate(fields)
        field = weighted_total(self.layout, self.sizes, every, vectors, segments)
        shards = shards_of(self.sizes.lengths)
        log_likelihood = sum_of_shards(self.sizes.weights, np.array(log_likelihoods), shards)
        return field, float(log_likelihood)

    def reset_control(self):
        """No V_i is ever lost."""

    def save(self):
        """V_i of all clients; everything else stays with them."""
        return {"controls": np.concatenate(self.ask_all("control")), "states": ()}
