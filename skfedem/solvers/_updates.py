"""Messages of hard EM: updates of networks, compressed or as they are, and their bytes."""

from __future__ import annotations

import numpy as np

from .. import _random
from .._typing import IntArray
from ..compression._survivors import (
    decode_dense,
    decode_survivors,
    encode_dense,
    encode_survivors,
    size_of_dense,
    size_of_survivors,
)
from ..priors import Update
from .base import Broadcast, ClientGroup, Task
from .messages import Message


def compressed(
    task: Task, broadcast: Broadcast, group: ClientGroup, update: Update
) -> tuple[Update, IntArray]:
    """Update as the server decodes it, and the numbers of bytes."""
    values, survivors = update.differences, update.survivors
    lengths = np.full(len(values), values.shape[1])
    if survivors is not None:
        values, lengths = np.where(survivors, values, 0.0), survivors.sum(axis=1)
    n_bytes = size_of_dense(lengths)
    if task.omega:
        address = task.seed, _random.COMPRESSION, broadcast.round_index
        uniforms = _random.client_uniforms(*address, group.ids, values.shape[1])
        sent = np.ones(values.shape, bool) if survivors is None else survivors
        quantized, n_bytes = task.compressor.send(values[sent], uniforms[sent], lengths)
        values = np.zeros(values.shape)
        values[sent] = quantized
    update = update._replace(differences=values)
    groups = task.model.prior.groups(broadcast.parameters)
    if groups is not None and update.kept is not None:
        n_groups = np.count_nonzero(groups)
        n_bytes = n_bytes + size_of_survivors(n_groups, update.kept.sum(axis=1), 0)
    return update, n_bytes + size_of_dense(_n_shares(task))


def _n_shares(task: Task) -> int:
    """Number of responsibilities in a message."""
    n_models = task.model.prior.n_models
    return n_models if n_models > 1 else 0


def encode(task: Task, broadcast: Broadcast, message: Message) -> bytes:
    """Update of one client: responsibilities, which groups are kept, and their numbers."""
    update: Update = message.quantized
    groups = task.model.prior.groups(broadcast.parameters)
    values, shares = update.differences[0], b""
    if update.survivors is not None:
        values = values[update.survivors[0]]
    numbers = task.compressor.encode(values) if task.omega else encode_dense(values)
    if update.shares is not None:
        shares = encode_dense(update.shares[0])
    if groups is not None and update.kept is not None:
        numbers = encode_survivors(update.kept[0][groups], numbers)
    return shares + numbers


def decode(task: Task, broadcast: Broadcast, data: bytes) -> Update:
    """Update of one client from its bytes; ValueError if they are damaged."""
    prior, shared = task.model.prior, broadcast.parameters
    shape, kept, survivors = (1, task.model.n_statistics), None, None
    models, shares = np.zeros(1, dtype=np.intp), None
    if n_shares := _n_shares(task):
        cut = size_of_dense(n_shares)
        shares, data = decode_dense(data[:cut], n_shares)[None], data[cut:]
        models = shares.argmax(axis=1)
    sent, groups = np.ones(shape, bool), prior.groups(shared)
    if groups is not None:
        kept = np.zeros((1, len(groups)), bool)
        kept[0, groups], data = decode_survivors(data, int(groups.sum()))
        sent = survivors = prior.survivors(kept)
    differences, length = np.zeros(shape), int(sent.sum())
    read = task.compressor.decode if task.omega else decode_dense
    differences[sent] = read(data, length)
    return Update(differences, models, kept, survivors, shares=shares)
