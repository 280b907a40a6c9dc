"""Every row of ``problems.COMPRESSORS`` in brief; ``test_compression.py`` has the details."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import (
    every_compressor,
)
from problems import (
    COMPRESSORS,
)


def vectors_of_all_kinds(length):
    """Vectors that biased operators treat unlike, the first of them even."""
    generator = np.random.default_rng(length)
    even = generator.uniform(0.2, 2.0, length) * (-1.0) ** np.arange(length)
    like, alone = np.full(length, -0.7), np.eye(length)[0]
    gaussian = generator.standard_normal(length)
    sparse = gaussian * (np.arange(length) % 4 == 0)
    return even, like, alone, gaussian, gaussian**5, sparse, 1e-5 * gaussian, 1e6 * gaussian


@every_compressor
@pytest.mark.parametrize("length", [1, 11, 100])
def test_compression_is_unbiased(operator, length):
    n_draws = 20_000 if length < 11 else 200_000 // length
    uniforms = np.random.default_rng(2).random((n_draws, length))
    even, *others = vectors_of_all_kinds(length)
    for vector in (even, *others):
        sent = operator.compress(np.tile(vector, (n_draws, 1)), uniforms)
        variance, sq_norm = operator.variance(vector).item(), vector @ vector
        bias = sent.mean(axis=0) - vector
        # The mean square of this norm is variance / n_draws; coordinates so small that they are
        # hardly ever sent have no share in it. A norm that travels as a float32 makes an outcome of
        # probability levels / 2^24 of one that would be certain: most seeds have no draw of it, and
        # one is many standard errors, for which Bernstein's inequality adds five draws.
        furthest = np.linalg.norm(sent - vector, axis=1).max()
        error = 5 * np.sqrt(variance / n_draws) + 5 * furthest / n_draws
        error += 2**-22 * np.sqrt(sq_norm)
        assert np.linalg.norm(bias) <= error
        if vector is even:
            # Five standard errors: each of 112 coordinates misses once in two million seeds. An
            # outcome that hardly any draw has is unknown to them: all get a share of the largest.
            standard_error = sent.std(axis=0) / np.sqrt(n_draws)
            error = 5 * np.maximum(standard_error, 0.05 * standard_error.max()) + 2**-22
            assert (np.abs(bias) <= error).all()
        squares = ((sent - vector) ** 2).sum(axis=1)
        error = 5 * squares.std() / np.sqrt(n_draws) + 2**-20 * sq_norm
        assert abs(squares.mean() - variance) <= error


@every_compressor
def test_variance_is_within_omega_for_vectors_of_all_kinds(operator):
    generator = np.random.default_rng(0)
    for q in (1, 2, 11, 64, 300):
        peaked, heavy = np.ones(q), generator.standard_normal(q) ** 9
        peaked[0] = 1 + np.sqrt(q)  # what the maximum norm is worst for
        for vector in (peaked, heavy, *vectors_of_all_kinds(q)):
            variance, omega = operator.variance(vector)[0], operator.omega_for(q)
            # A norm that travels as a float32 may exceed ω by 2^-23 of 1 + ω.
            assert variance <= (omega + (1 + omega) * 2**-22) * (vector @ vector)


@every_compressor
def test_omega_is_told_for_one_length_or_many(operator):
    lengths = np.array([[0, 1, 2], [11, 64, 300]])
    each = [[operator.omega_for(q) for q in row] for row in lengths.tolist()]
    assert all(np.ndim(omega) == 0 and 0 <= omega < np.inf for row in each for omega in row)
    assert_array_equal(operator.omega_for(lengths), each)


@every_compressor
def test_omega_is_refused_for_what_is_no_length(operator):
    for length in (-3, 2.5, [4, -1], [0.5], "q"):
        with pytest.raises((TypeError, ValueError)):
            operator.omega_for(length)


@every_compressor
def test_compression_refuses_what_is_no_vector_or_no_draw(operator):
    vector, uniforms = vectors_and_draws(5)
    odd = [np.append(vector, bad) for bad in (np.nan, np.inf)]
    for values in (*odd, vector[0], vector[None, None], 1j * vector, "vector"):
        with pytest.raises((TypeError, ValueError)):
            operator.compress(values, np.full(np.shape(values), 0.5))
        with pytest.raises((TypeError, ValueError)):
            operator.variance(values)
    for bad in (1.0, -1e-9, np.nan):
        with pytest.raises(ValueError):
            operator.compress(vector, np.append(uniforms[1:], bad))
    for values in (np.append(vector, 1.0), np.tile(vector, (2, 1))):
        with pytest.raises(ValueError):
            operator.compress(values, uniforms)


@every_compressor
def test_lengths_that_do_not_add_up_are_refused(operator):
    vector, uniforms = vectors_and_draws(5)
    sent = operator.compress(vector, uniforms)
    for lengths in ([1, 1], [4], [5, 1], [6, -1], [2.5, 2.5], [[5]]):
        with pytest.raises((TypeError, ValueError)):
            operator.compress(vector, uniforms, lengths)
        with pytest.raises((TypeError, ValueError)):
            operator.variance(vector, lengths)
        with pytest.raises((TypeError, ValueError)):
            operator.n_bytes(sent, lengths)
    with pytest.raises(ValueError):
        operator.compress(vector[None], uniforms[None], [5])


def vectors_and_draws(*shape):
    """Vectors with large and small coordinates and some zeros, and as many uniform numbers."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal(shape) ** 3 * (generator.random(shape) < 0.8)
    return vectors, generator.random(shape)


def assert_same_bits(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


@every_compressor
def test_compression_leaves_its_inputs_alone(operator):
    lengths = np.array([5, 0, 18])
    for shape, where in (((23,), None), ((4, 23), None), ((23,), lengths)):
        vectors, uniforms = given = vectors_and_draws(*shape)
        copies = [array.copy() for array in given]
        sent = operator.compress(vectors, uniforms, where)
        kept = sent.copy()
        operator.send(vectors, uniforms, where)
        operator.variance(vectors, where)
        operator.n_bytes(sent, where)
        for array, copy in zip((*given, sent), (*copies, kept), strict=True):
            assert_same_bits(array, copy)
        assert not np.shares_memory(sent, vectors)


@every_compressor
@pytest.mark.parametrize("lengths", [[23] * 4, [0, 5, 0, 1, 17, 3, 40, 0]], ids=["equal", "unlike"])
def test_compression_of_a_vector_does_not_depend_on_its_neighbours(operator, lengths):
    vectors, uniforms = vectors_and_draws(sum(lengths))
    vectors[: lengths[0]] = 0
    cuts = np.cumsum(lengths)[:-1]
    own = list(zip(np.split(vectors, cuts), np.split(uniforms, cuts), strict=True))
    alone = [operator.compress(*each) for each in own]
    n_bytes = [operator.n_bytes(vector).item() for vector in alone]
    variances = [operator.variance(vector).item() for vector, _ in own]
    together = [(vectors, uniforms, np.array(lengths))]
    if len(set(lengths)) == 1:
        together.append((vectors.reshape(len(lengths), -1), uniforms.reshape(len(lengths), -1)))
    for values, numbers, *where in together:
        sent = operator.compress(values, numbers, *where)
        assert sent.shape == values.shape
        assert_same_bits(sent.ravel(), np.concatenate(alone))
        assert operator.n_bytes(sent, *where).tolist() == n_bytes
        # Sums of up to 40 squares, maybe in another order.
        assert_allclose(operator.variance(values, *where), variances, rtol=1e-14)
        at_once = operator.send(values, numbers, *where)
        assert_same_bits(at_once[0], sent)
        assert at_once[1].tolist() == n_bytes


@every_compressor
def test_compression_keeps_zeros_and_gives_none_a_sign(operator):
    # With the extreme draws, too: a random rounding of the norm may give one level more.
    for vector in (0.1 * np.eye(6)[2], [5e-324, 0, -1e-323], [-0.0, 0.3], [0.0, -0.0, -2.0, 1e-9]):
        vector = np.array(vector)
        for uniform in (0.0, 0.5, np.nextafter(1.0, 0.0)):
            sent = operator.compress(vector, np.full(len(vector), uniform))
            assert np.isfinite(sent).all()
            assert not sent[vector == 0].any()
            assert not np.signbit(sent[sent == 0]).any()


@every_compressor
def test_compression_is_told_by_bytes_bit_for_bit(operator):
    for length in (0, 1, 2, 11, 200):
        vector, uniforms = vectors_and_draws(length)
        for scale in (1.0, 0.0, 1e-320, 1e-160, 1e60, 1e200):
            sent = operator.compress(scale * vector, uniforms)
            sent.setflags(write=False)
            data = operator.encode(sent)
            assert isinstance(data, bytes)
            assert_same_bits(operator.decode(data, length), sent)
            assert operator.n_bytes(sent).tolist() == [len(data)]


@every_compressor
@pytest.mark.parametrize("length", [0, 1, 11])
def test_compression_refuses_damaged_bytes(operator, length):
    data = operator.encode(operator.compress(*vectors_and_draws(length)))
    damaged = [data[:n] for n in range(len(data))] + [data + b"\0", data + data]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for expected in {0, 1, length - 1, length + 1, 2**40} - {-1, length}:
        with pytest.raises(ValueError):
            operator.decode(data, expected)
    for other in damaged:
        with pytest.raises(ValueError):
            operator.decode(other, length)


@every_compressor
def test_what_compression_cannot_have_given_is_refused_or_told_by_bytes(operator):
    sent = operator.compress(*vectors_and_draws(5))
    for bad in (np.append(sent, np.nan), np.append(sent, -np.inf), sent[None], sent[0], "vector"):
        with pytest.raises((TypeError, ValueError)):
            operator.encode(bad)
    for vector in (*vectors_of_all_kinds(11), np.array([0.1, 0.3, 0.7, np.pi])):
        try:
            data = operator.encode(vector)
        except (TypeError, ValueError):
            continue
        assert_array_equal(operator.decode(data, len(vector)), vector)


def messages_of(operator):
    """What it sends of vectors of some lengths, and the lengths."""
    for q in (0, 1, 11, 200):
        yield operator.encode(operator.compress(*vectors_and_draws(q))), q


@every_compressor
def test_messages_of_other_classes_are_refused(operator):
    first = {data[0] for data, _ in messages_of(operator)}
    others = [other for other in COMPRESSORS if type(other) is not type(operator)]
    assert others
    for other in others:
        for data, length in messages_of(other):
            with pytest.raises(ValueError):
                operator.decode(data, length)
            # A checksum tells damage, not classes: the first byte names the class.
            assert first.isdisjoint({data[0]})
    assert len(first) == 1
    for data in ("message", 3.0, None):
        with pytest.raises(TypeError):
            operator.decode(data, 7)
