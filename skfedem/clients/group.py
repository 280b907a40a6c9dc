"""The clients' half of a round for a group of clients at one place, and messages as bytes.

For solvers that only say how s̄_i(T(Ŝ)) is estimated, messages are compressed innovations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _random
from .._client_vectors import ClientVectors
from .._typing import FloatArray, IntArray
from ..compression import Compressor
from ..compression._base import check_compressed, check_n_bytes
from ..models._base import Estimate
from ..solvers.base import Broadcast, ClientGroup, Solver, Task
from ..solvers.messages import EncodedMessage, Message

# Larger innovations are due to diverging control variates, not to data.
_DIVERGED = 1e200


def client_half(
    solver: Solver, task: Task, broadcast: Broadcast, group: ClientGroup
) -> tuple[Message, FloatArray, Any]:
    """The active clients' half of a round (lines 5-9 of Algorithm 1, 7-11 of Algorithm 2).

    Returns their messages, and the V_{k+1,i} and states to be kept if the server accepts the round.
    """
    if solver.client_half:
        return solver.client_half(task, broadcast, group)
    assert solver.estimate is not None  # of a solver without its own half
    estimate, states = solver.estimate(task, broadcast, group)
    innovations = _innovations(task, broadcast, group, estimate)
    quantized, sent, n_bytes = compress(task, broadcast, group, innovations)
    controls = group.controls
    if task.has_controls:
        controls = controls + task.control_step * quantized
    message = Message(
        quantized=quantized,
        sent=sent,
        n_bytes=int(n_bytes.sum()),
        n_expectations=estimate.n_expectations,
        log_likelihood=estimate.log_likelihood,
        uncompressed=estimate.uncompressed,
    )
    return message, controls, states


def encoded(solver: Solver, task: Task, broadcast: Broadcast, message: Message) -> EncodedMessage:
    """The message of a single client as it travels."""
    if solver.codec:
        content = solver.codec.encode(task, broadcast, message)
    else:
        content = task.compressor.encode(message.sent.ravel())
    return EncodedMessage(
        np.frombuffer(content, np.uint8),
        message.n_expectations,
        message.log_likelihood,
        message.uncompressed,
        message.reported,
    )


def decoded(
    solver: Solver,
    task: Task,
    broadcast: Broadcast,
    layout: ClientVectors,
    client: int,
    encoded: EncodedMessage,
) -> Message:
    """The message of a client, of which the server knows the layout of vectors.

    Raises ValueError if it is damaged.
    """
    data, sent = encoded.content.tobytes(), None
    if solver.codec:
        quantized = solver.codec.decode(task, broadcast, data)
    else:
        shape, units = layout.shape_of(client), broadcast.message_units
        sent = task.compressor.decode(data, shape[-1]).reshape(shape)
        quantized = sent if units is None else units.to_standard(sent)
    told = encoded._asdict()
    del told["content"]
    return Message(quantized, sent, n_bytes=len(data), **told)


def _innovations(
    task: Task, broadcast: Broadcast, group: ClientGroup, estimate: Estimate
) -> FloatArray:
    """Δ_i = S_i - V_i - Ŝ (line 7)."""
    if not task.has_controls:
        return estimate.statistics - broadcast.reference
    innovations = estimate.statistics - group.controls
    innovations -= broadcast.reference
    return innovations


def compress(
    task: Task, broadcast: Broadcast, group: ClientGroup, innovations: FloatArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Quant(Δ_i) with each client's random numbers; the same in message units; lengths in bytes."""
    vectors, clients, units = (
        task.model.vectors(group.federation),
        group.clients,
        broadcast.message_units,
    )
    lengths = vectors.lengths(clients)
    if task.omega == 0:
        n_bytes = task.compressor.n_bytes(innovations, lengths)
        check_n_bytes(task.compressor, n_bytes, len(clients))
        return innovations, innovations, n_bytes
    if units is not None:
        innovations = units.to_components(innovations)
    address = task.seed, _random.COMPRESSION, broadcast.round_index
    uniforms = vectors.uniforms(*address, clients, group.ids)
    try:
        sent, n_bytes = task.compressor.send(innovations, uniforms, lengths)
    except ValueError as error:
        _raise_if_diverged(task.compressor, innovations, broadcast.round_index, error)
        raise
    check_compressed(task.compressor, sent, innovations.shape)
    check_n_bytes(task.compressor, n_bytes, len(clients))
    quantized = sent if units is None else units.to_standard(sent)
    return quantized, sent, n_bytes


def _raise_if_diverged(
    compressor: Compressor, innovations: FloatArray, round_index: int, error: ValueError
) -> None:
    """Raise an error that explains innovations too large for the compressor."""
    largest = np.abs(innovations).max()
    if largest >= _DIVERGED:  # False for NaN, which has other causes
        raise ValueError(
            f"Expected messages of moderate size in round {round_index + 1}, got {largest:.3g}: "
            f"control variates have diverged. Check that {compressor!r} is unbiased, and that its "
            "relative variance is at most its omega."
        ) from error
