"""Codes: exact round trips, exact sizes, the documented layout, refusal of damage."""

from __future__ import annotations

from binascii import crc_hqx

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import same_bits
from skfedem.compression._bits import count_bits, height_bits
from skfedem.compression._bits import message as message_of
from skfedem.compression._codec import Plain, Scaled, Sparse
from watched import peak_memory

FORM = 7
CODES = [Plain(FORM), Sparse(FORM), Scaled(FORM), Scaled(FORM, block_length=6)]
every_code = pytest.mark.parametrize("code", CODES, ids=repr)


def integers(length, seed=0):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(size=length) * 1.5) + 0.0


def check(code, vector):
    data = code.encode(vector)
    assert isinstance(data, bytes)
    assert same_bits(code.decode(data, len(vector)), vector)
    assert code.sizes(vector, np.array([len(vector)])).tolist() == [len(data)]


# --- round trips -----------------------------------------------------------------------------


@st.composite
def scaled_vectors(draw):
    length = draw(st.integers(0, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([0.3, 1, 10, 1000, 2**18]))
    heavy = draw(st.sampled_from([1, 5]))
    levels = np.clip(np.round(size * rng.normal(size=length) ** heavy), -(2**22), 2**22)
    levels *= rng.random(length) < draw(st.sampled_from([0.01, 0.3, 1.0]))
    block_length = draw(st.sampled_from([None, 1, 2, 7, 64, 1000]))
    scale = 2.0 ** draw(st.sampled_from([0, -1074, -200, 200, 900]))
    n_blocks = -(-length // (block_length or max(length, 1)))
    steps = rng.integers(1, 2**24, size=n_blocks) * scale
    return levels * np.repeat(steps, block_length or length)[:length] + 0.0, block_length


@settings(max_examples=300, deadline=None, derandomize=True)
@given(scaled_vectors())
def test_scaled_round_trip(case):
    vector, block_length = case
    check(Scaled(FORM, block_length), vector)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 5000), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_subsets_of_any_size(length, share, seed):
    # bitmap, Elias-Fano with up to 12 low bits, complements, all, none
    rng = np.random.default_rng(seed)
    vector = np.where(rng.random(length) < share**4, rng.normal(size=length), 0.0)
    ones = np.where(rng.random(length) < share**4, 0.0, 1.0)
    check(Sparse(FORM), vector)
    check(Sparse(FORM), ones)
    check(Scaled(FORM), ones)
    check(Plain(FORM), vector)


@pytest.mark.parametrize("levels", [[2, 3], [6, 10, 15], [4, 6, 0, -10], [0, 9, 0], [5, 8, 13, 21]])
@pytest.mark.parametrize("step", [1.0, 1.75 * 2.0**-1070, 2.0**900, float(np.float32(1 / 3))])
def test_step_is_found_when_no_integer_is_one(levels, step):
    check(Scaled(FORM), np.array(levels) * step + 0.0)


def test_step_of_24_bits_is_found_below_integers_of_22():
    check(Scaled(FORM), np.array([2.0**22 - 1, -(2.0**22) + 2]) * (2.0**24 - 1))


def test_a_step_that_is_no_float32_costs_its_own_block_four_bytes():
    # Alone in its block, 3 times a step of 24 bits counts as once a step of 26 bits.
    vector = np.tile([1.0, 3.0], 100) * (2.0**24 - 1)
    code = Scaled(FORM, block_length=2)
    n_bytes = len(code.encode(vector))
    vector[0] = 0
    check(code, vector)
    # Four bytes of the step; 16 bits say which of 100 it is, at most 20 which number became 0.
    assert len(code.encode(vector)) <= n_bytes + 4 + 5


def test_sizes_of_many_rows():
    rows = np.array([integers(50, seed) * 10.0**seed for seed in range(8)])
    rows[3] = 0
    rows[4] *= 1000
    rows[5] *= np.arange(50) == 4
    rows[6] = 0.1 * np.sign(rows[6])  # in which alone steps are no float32s
    # Of any lengths, the first and the last of none.
    rows = [np.empty(0), *(row[: 50 - 6 * k] for k, row in enumerate(rows)), np.empty(0)]
    lengths = np.array([len(row) for row in rows])
    for code in CODES:
        sizes = code.sizes(np.concatenate(rows), lengths)
        assert sizes.tolist() == [len(code.encode(row)) for row in rows]
        assert code.sizes(np.empty(0), lengths[:0]).shape == (0,)
        assert code.sizes(np.empty(0), np.zeros(2, int)).tolist() == [sizes[0]] * 2


def test_large_integers_cost_their_bits():
    # uniform on 1 .. 2**20: 20 bits and a sign each, and at most one more for the heights
    vector = np.random.default_rng(0).integers(1, 2**20, size=3000).astype(float)
    assert 20.9 < 8 * len(Scaled(FORM).encode(vector)) / 3000 < 22


# --- layout ----------------------------------------------------------------------------------


def number(value, width):
    return "".join(str(value >> i & 1) for i in range(width))


def count(value):
    return number(value.bit_length(), 6) + number(value, value.bit_length())


def message(bits, floats=b"", form=FORM):
    bits = bits.replace(" ", "")
    padded = bits + "0" * (-len(bits) % 8)
    body = bytes([form, *(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8))]) + floats
    return sealed(body)


def sealed(body):
    return body + crc_hqx(body, 0xFFFF).to_bytes(2, "big")


def float32(value):
    return np.array(value, "<f4").tobytes()


def float64(value):
    return np.array(value, "<f8").tobytes()


ONE, WIDE = float32(1), float64(1)
HEAD = count(0) + "0" + number(0, 5)  # of Scaled, after the length: one block, float32, m = 0


@pytest.mark.parametrize(
    ("code", "vector", "data"),
    [
        (Plain(FORM), [1.0], message(count(1), WIDE)),
        # 2 of 4 by a bitmap; none of these 2 is higher
        (Sparse(FORM), [1.0, 0, 1, 0], message(count(4) + "010 1010 00 0", 2 * WIDE)),
        # signs last
        (Scaled(FORM), [1.0, 0, -1, 0], message(count(4) + HEAD + "010 1010 00 0 01", ONE)),
        # 1 of 8: one range of 8 with one, then 3 low bits of 5
        (Scaled(FORM), np.eye(8)[5], message(count(8) + HEAD + "1000 10 101 0 0 0", ONE)),
        # 7 of 8: the other one in the same way
        (
            Scaled(FORM),
            1 - np.eye(8)[5],
            message(count(8) + HEAD + "1110 10 101 000 0" + 7 * "0", ONE),
        ),
        # 1 and 2: both of 2 (0 others), 1 of 2 higher, 0 of 1 higher
        (Scaled(FORM), [1.0, 2], message(count(2) + HEAD + "01 0 10 01 0 0 00", ONE)),
        # blocks of 2: a step for the second one only; 1e-300 is not a float32
        (
            Scaled(FORM, 2),
            [0.0, 0, 1e-300],
            message(
                count(3) + count(2) + "1" + number(0, 5) + "10 001 0 0" + "1 0" + "0",
                float64(1e-300),
            ),
        ),
        # blocks of 1: float32s before float64s
        (
            Scaled(FORM, 1),
            [1e-300, 1.0],
            message(
                count(2) + count(1) + "1" + number(0, 5) + "01 0 00 0" + "10 10" + "00",
                ONE + float64(1e-300),
            ),
        ),
        # 1 and 33, 32 has 6 bits: heights 1 and 9, then signs, then two low bits of 0 and 32
        (
            Scaled(FORM),
            [1.0, 33],
            message(
                count(2)
                + count(0)
                + "0"
                + number(2, 5)
                + "01 0 10 01"
                + 7 * "1 0"
                + "0 0 00 00 00",
                ONE,
            ),
        ),
    ],
)
def test_documented_layout(code, vector, data):
    vector = np.array(vector)
    assert code.encode(vector) == data
    check(code, vector)


@pytest.mark.parametrize(
    ("code", "length", "data", "match"),
    [
        (Plain(FORM), 0, message(count(0), form=6), "format byte 0x07, got 0x06"),
        (Plain(FORM), 1, message(count(1), float64(np.nan)), "finite"),
        (Plain(FORM), 2, message(count(1), WIDE), "vector of length 2, got one of length 1. Dec"),
        (Plain(FORM), 2, message(count(2**52), WIDE), "got one of length 4503599627370496. Decode"),
        (Plain(FORM), 2**51, message(count(2**51)), "Expected 2251799813685248 floats"),
        (Plain(FORM), 0, message("111111"), "at least 69 bits, got 8"),
        (Plain(FORM), 0, message(count(0) + "01"), "zeros after the last bit"),
        (Sparse(FORM), 2**24, message(count(2**24) + number(0, 25 + 8)), "at least .* bits"),
        (Sparse(FORM), 2, message(count(2) + "11" + 30 * "0"), "at most 2 items, got 3"),
        (Sparse(FORM), 4, message(count(4) + "010 1011 00 0", 2 * WIDE), "2 ones, got 3"),
        (Sparse(FORM), 8, message(count(8) + "1000 00 101 0 0", WIDE), "1 ones, got 0"),
        (
            Sparse(FORM),
            8,
            message(count(8) + "1000 01 101 0 0", WIDE),
            "increasing .* below 8",
        ),
        (
            Sparse(FORM),
            5,
            message(count(5) + "100 010 11 0 0", WIDE),
            "increasing .* below 5",
        ),
        (
            Sparse(FORM),
            16,
            message(count(16) + "01000 1100 101 101" + 9 * "0", 2 * WIDE),
            "increasing",
        ),
        (Sparse(FORM), 1, message(count(1) + "1 0 0 0", bytes(8)), "non-zero"),
        (Scaled(FORM), 1, message(count(1) + HEAD + "1 0 0 0 0", bytes(4)), "above 0"),
        (Scaled(FORM), 1, message(count(1) + HEAD + "1 0 0 0 0", float32(-1)), "above 0"),
        (Scaled(FORM), 1, message(count(1) + HEAD + "1 0 0 0 0", float32(np.inf)), "finite"),
        (Scaled(FORM), 1, message(count(1) + HEAD + "1 0 0 0 0", ONE[:3]), "1 floats of type <f4"),
        (Scaled(FORM), 1, message(count(1) + HEAD + "1 0 0 0 0", WIDE), "the end .* 4 bytes more"),
        (
            Scaled(FORM),
            1,
            message(count(1) + count(0) + "1" + number(0, 5) + "1 0 0 0 1 0 0", float64(2.0**1001)),
            r"at most 2\*\*1000",
        ),
        (
            Scaled(FORM),
            1,
            message(count(1) + count(0) + "0" + number(19, 5) + "1 0 0 0 0" + 19 * "1", ONE),
            "at most 18 low bits, got 19",
        ),
    ],
)
def test_format_errors_are_named(code, length, data, match):
    with pytest.raises(ValueError, match=match):
        code.decode(data, length)


# --- damage ----------------------------------------------------------------------------------


@every_code
def test_truncated_or_extended_messages_are_refused(code):
    data = code.encode(integers(40))
    for stop in range(len(data)):
        with pytest.raises(ValueError, match="Expected"):
            code.decode(data[:stop], 40)
        # with a right checksum the format itself must refuse
        with pytest.raises(ValueError, match="Expected"):
            code.decode(sealed(data[: max(stop - 2, 0)]), 40)
    for extra in [b"\0", b"\0" * 4, b"abc"]:
        with pytest.raises(ValueError, match="Expected"):
            code.decode(sealed(data[:-2] + extra), 40)


@every_code
def test_every_bit_flip_is_refused(code):
    # Guaranteed: CRC-16-CCITT detects all one-bit errors of messages below 32751 bits.
    data = code.encode(integers(40))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="Expected"):
            code.decode(damaged, 40)


def test_damage_that_the_checksum_does_not_find_spans_more_than_16_bits():
    # Guaranteed of a CRC-16 that follows its message bit by bit; here at the end of the message.
    whole, *others = (
        int.from_bytes(message_of(FORM, [np.zeros(8, dtype=bool)], np.array([last], ">u2")), "big")
        for last in range(2**16)
    )
    damages = [whole ^ other for other in others]
    assert min((damage // (damage & -damage)).bit_length() for damage in damages) == 17


@every_code
def test_what_holds_no_bytes_is_refused(code):
    for data in (5, 10**30, "abc", None, 3.0, [1, 2]):
        with pytest.raises(TypeError, match=f"Expected bytes, got {type(data).__name__}. Give"):
            code.decode(data, 40)
    data = code.encode(integers(40))
    for same in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        np.testing.assert_array_equal(code.decode(same, 40), code.decode(data, 40))


@every_code
def test_forged_messages_are_refused_or_give_a_finite_vector(code):
    # Right checksum, damaged content: never another exception.
    rng = np.random.default_rng(0)
    outcomes = []
    for length in [0, 1, 6, 40, 300]:
        data = code.encode(integers(length))
        for _ in range(300):
            body = bytearray(data[:-2])
            for at in rng.integers(1, min(len(body), 12), size=rng.integers(1, 4)):
                body[at] = rng.integers(256)
            try:
                vector = code.decode(sealed(bytes(body)), length)
            except ValueError:
                outcomes.append(False)
            else:
                outcomes.append(True)
                assert np.isfinite(vector).all() and len(vector) == length
    assert not all(outcomes)


def test_a_height_of_2_says_nothing_of_a_number_that_is_only_there_or_not():
    bits = [count_bits(1), *height_bits(np.array([2]))]
    with pytest.raises(ValueError, match="Expected heights of at most 1, got higher ones"):
        Sparse(FORM).decode(message_of(FORM, bits, np.ones(1)), 1)


@pytest.mark.parametrize("code, n_bits", [(Sparse(FORM), 6 + 1), (Scaled(FORM), 6 + 1 + 6 + 6)])
def test_heights_that_nobody_writes_are_refused(code, n_bits):
    # One item that is higher and higher, by two bits each time.
    counts = np.zeros(n_bits, dtype=bool)
    counts[[0, 6]] = True
    body = np.packbits(np.concatenate([counts, np.tile([True, False], 1000)])).tobytes()
    with pytest.raises(ValueError, match="Expected heights of at most (1|16), got higher ones"):
        code.decode(sealed(bytes([FORM]) + body), 1)


# --- memory ----------------------------------------------------------------------------------


def refused_within_its_memory(code, data, length):
    """Whether a message is refused; if so, after it took no more memory than documented."""
    refused = []

    def decode():
        try:
            code.decode(data, length)
        except ValueError:
            refused.append(data)

    peak = peak_memory(decode)
    # 16 kB for the objects of Python, and the error with its traceback.
    assert not refused or peak <= 10 * len(data) + 8 * length + 2**14, (len(data), peak)
    return bool(refused)


@pytest.mark.parametrize("n_zeros", [2**20, 2**24, 2**51])
@pytest.mark.parametrize("code", [Sparse(FORM), Scaled(FORM), Scaled(FORM, 1)], ids=repr)
def test_a_few_bytes_of_many_zeros_are_refused_at_once(code, n_zeros):
    data = code.encode(np.zeros(2**20))
    assert len(data) < 50
    body = count_bits(n_zeros)
    forged = message_of(FORM, [body, np.zeros(8 * 600, dtype=bool)])
    assert refused_within_its_memory(code, data, 5)
    assert refused_within_its_memory(code, forged, 5)
    assert refused_within_its_memory(code, sealed(data[:-2] + b"\0"), 2**20)


@pytest.mark.parametrize("block_length", [None, 1, 2, 6])
@pytest.mark.parametrize("share", [0.0, 1e-4, 0.1, 0.24, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("largest", [1, 3, 2**20])
def test_errors_at_the_end_of_a_message_are_found_in_little_memory(block_length, share, largest):
    # All that is read before has to be kept by then.
    length = 20_000
    rng = np.random.default_rng(0)
    vector = rng.integers(1, largest + 1, length) * (rng.random(length) < share) * 1.0
    for code in (
        Scaled(FORM, block_length),
        *([] if block_length else [Plain(FORM), Sparse(FORM)]),
    ):
        data = code.encode(vector)
        assert not refused_within_its_memory(code, data, length)
        assert refused_within_its_memory(code, sealed(data[:-2] + b"\0"), length)
        assert refused_within_its_memory(code, sealed(data[:-3]), length)
        if share:
            assert refused_within_its_memory(code, sealed(data[:-6] + b"\xff" * 4), length)


@pytest.mark.parametrize("code", [*CODES, Scaled(FORM, 1)], ids=repr)
def test_hostile_bytes_are_refused_or_give_finite_vectors_in_little_memory(code):
    rng = np.random.default_rng(1)
    n_refused = 0
    for length in (0, 1, 40, 3000):
        whole = code.encode(integers(length, seed=2))[:-2]
        for _ in range(40):
            stop = rng.integers(len(whole) + 1)
            changed = bytearray(whole)
            for at in rng.integers(1, min(len(whole), 12), size=2):
                changed[at] = rng.integers(256)
            forged = [
                whole[:stop],
                whole + rng.bytes(rng.integers(1, 50)),
                whole[:1] + rng.bytes(rng.integers(1, 700)),
                whole[:stop] + rng.bytes(len(whole) - stop),
                changed,
            ]
            for body in forged:
                n_refused += refused_within_its_memory(code, sealed(bytes(body)), length)
            # Another length than is expected.
            assert refused_within_its_memory(code, sealed(whole), length + 1)
    assert n_refused > 300


# --- refusals of values ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector",
    [[1, np.sqrt(2)], [1, 2**22 + 1], [1, np.pi, 1e-9], [1e-300, 1], [1e-300, 1e300],
     [3, np.nextafter(9.0, 10)], [2.0**1001], [np.nan], [np.inf, 1], [np.nan, 1]],
)  # fmt: skip
@pytest.mark.parametrize("code", [Scaled(FORM), Scaled(FORM, 3)], ids=repr)
def test_numbers_without_a_common_step_are_refused(code, vector):
    vector = np.array(vector, dtype=float)
    for call in [code.encode, lambda v: code.sizes(v, np.array([len(v)]))]:
        with pytest.raises(ValueError, match="whole multiples"):
            call(vector)


def test_other_limits():
    with pytest.raises(ValueError, match="at most 5, of one step"):
        Scaled(FORM, most=5).encode(np.array([1.0, 6.0]))
    with pytest.raises(ValueError, match="at most 1 non-zeros, got 2"):
        Sparse(FORM, most=1).encode(np.array([1.0, 6.0]))
    for code in [Plain(FORM), Sparse(FORM)]:
        with pytest.raises(ValueError, match="finite"):
            code.encode(np.array([1.0, np.inf]))


def test_integers_up_to_16_have_no_low_bits():
    vectors = np.array([[1.0] * 63 + [16.0], [1.0] * 63 + [17.0]])
    within, beyond = Scaled(form=FORM).sizes(vectors.ravel(), np.array([64, 64]))
    # With 17, each of the 64 integers has a low bit, and the heights 9 to 16 are not needed.
    assert within + (64 - 8) / 8 - 1 <= beyond <= within + (64 - 8) / 8 + 1
