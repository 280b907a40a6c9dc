"""Which node has which name: with stand-ins for Flower's messages.

Flower has an environment of its own: ``.ci/flower`` runs its processes.
"""

import sys
from itertools import count
from types import SimpleNamespace

import pytest
from numpy.testing import assert_array_equal

from deployed import ANYTHING, tables_of
from skfedem import FederatedGaussianMixture
from skfedem.deploy import Client, Server, _phases, flower

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
MIXTURE = FederatedGaussianMixture(2, omega=1.0, max_iter=4, tol=0, random_state=0)


class Message:
    def __init__(self, content, dst_node_id=0, message_type="", ttl=0.0, reply_to=None):
        self.content, self.node, self.ttl = content, dst_node_id, ttl
        self.metadata = SimpleNamespace(reply_to_message_id=reply_to)

    def has_error(self):
        return self.content is None


class Grid:
    """Nodes that answer at once, by functions of what they are sent; None is an error."""

    def __init__(self, nodes):
        self.nodes, self.answers, self.numbers = nodes, {}, count()
        self.away, self.silent = set(), set()
        self.sent = []

    def get_node_ids(self):
        return [node for node in self.nodes if node not in self.away]

    def push_messages(self, messages):
        (message,) = messages
        number = f"{next(self.numbers)}"
        data = message.content["skfedem"]["data"]
        self.sent.append((message.node, data, message.ttl))
        if message.node not in self.silent:
            reply = self.nodes[message.node](data)
            content = None if reply is None else {"skfedem": {"data": reply}}
            self.answers[number] = Message(content, reply_to=number)
        return [number]

    def pull_messages(self, numbers):
        return [self.answers.pop(number) for number in numbers if number in self.answers]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    records = {"Message": Message, "ConfigRecord": dict, "RecordDict": dict}
    monkeypatch.setitem(sys.modules, "flwr", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flwr.app", SimpleNamespace(**records))
    for module, name in ((_phases, "_LOOK"), (_phases, "_AGAIN"), (flower, "_AGAIN")):
        monkeypatch.setattr(module, name, 0.001)


def grid_of(tables, folder):
    """Nodes 1, 2, ... of clients a, b, ..."""

    def node(name, table):
        client = Client(name, table, folder / name, seed=0, policy=ANYTHING)
        return lambda data: client.answer(data) if data else name.encode()

    return Grid({k: node(*own) for k, own in enumerate(zip("abc", tables, strict=True), start=1)})


def means_of_fit(grid, folder, **options):
    server = Server(MIXTURE, ["a", "b", "c"], folder / "server")
    return flower.run(server, grid, report=lambda line: None, **options).means_


@pytest.mark.parametrize("nodes", [None, {1: "a", 2: "b", 3: "c"}])
def test_nodes_have_names_or_say_them(nodes, tmp_path):
    grid, want = grid_of(tables_of(), tmp_path), MIXTURE.fit(tables_of()).means_
    assert_array_equal(means_of_fit(grid, tmp_path, nodes=nodes, timeout=7.0), want)
    introductions = [node for node, data, _ in grid.sent if not data]
    assert introductions == ([1, 2, 3] if nodes is None else [])
    assert {ttl for _, data, ttl in grid.sent if data} == {7.0}


def test_a_node_that_did_not_say_its_name_is_asked_again(tmp_path):
    grid, failures = grid_of(tables_of(), tmp_path), iter([None, b"", b"b"])
    answer = grid.nodes[1]
    grid.nodes[1] = lambda data: answer(data) if data else next(failures, b"a")
    want = MIXTURE.fit(tables_of()).means_  # the third time, it says the name of another node
    assert_array_equal(means_of_fit(grid, tmp_path), want)
    assert [node for node, data, _ in grid.sent if not data].count(1) >= 3


def test_messages_of_which_nothing_is_heard_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "_INTRODUCTION", 0.01)
    monkeypatch.setattr(flower, "_LATE", 0.01)
    grid = grid_of(tables_of(), tmp_path)
    grid.silent.add(2)
    look = grid.get_node_ids

    def heard():
        if len(grid.sent) > 6:  # nothing was heard of some introductions
            grid.silent.clear()
        return look()

    grid.get_node_ids = heard
    assert_array_equal(means_of_fit(grid, tmp_path), MIXTURE.fit(tables_of()).means_)


def test_the_reply_of_a_node_that_was_away_meanwhile_is_not_its_name(tmp_path):
    grid = grid_of(tables_of(), tmp_path)
    answer = grid.nodes[2]

    def leaves(data):
        if data and not grid.away:
            grid.away.add(2)
        return answer(data)

    grid.nodes[2] = leaves
    look, pull = grid.get_node_ids, grid.pull_messages

    def look_and_come_back():
        online = look()
        grid.away.clear()
        return online

    def pull_later(numbers):
        """Replies to what was sent before the last look."""
        return [] if grid.away else pull(numbers)

    grid.get_node_ids, grid.pull_messages = look_and_come_back, pull_later
    assert_array_equal(means_of_fit(grid, tmp_path), MIXTURE.fit(tables_of()).means_)
    assert [node for node, data, _ in grid.sent if not data].count(2) > 1
