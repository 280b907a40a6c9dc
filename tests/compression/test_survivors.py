"""The code of messages of which groups of numbers are left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.testing import assert_array_equal

from skfedem.compression import BlockQuantizer, Dithering, Identity, RandK
from skfedem.compression._survivors import (
    decode_dense,
    decode_survivors,
    encode_dense,
    encode_survivors,
    size_of_dense,
    size_of_survivors,
)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays.arrays(bool, st.integers(0, 300)), st.integers(0, 3), st.data())
def test_messages_come_back_and_have_the_counted_size(kept, size, data):
    n_numbers = size * int(kept.sum()) + 2
    numbers = data.draw(arrays.arrays(np.float32, n_numbers, elements=FLOATS))
    message = encode_survivors(kept, encode_dense(numbers))
    assert len(message) == size_of_survivors(len(kept), kept.sum(), n_numbers)
    found_kept, rest = decode_survivors(message, len(kept))
    found = decode_dense(rest, n_numbers).astype(np.float32)
    assert_array_equal(found_kept, kept)
    assert_array_equal(found.view(np.uint32), numbers.view(np.uint32))


def test_a_mask_takes_less_than_a_bit_for_each_group_if_few_are_left():
    kept = np.zeros(1000, bool)
    kept[7] = True
    assert len(encode_survivors(kept, encode_dense(np.ones(1)))) < 4 + 1000 / 8
    assert size_of_survivors(0, 0, 0) == 4  # first byte, count, and checksum
    assert size_of_dense(7850) * 8 == 32 * 7850


@pytest.mark.parametrize("cut", [1, 4])
def test_damaged_messages_are_refused(cut):
    message = encode_survivors(np.array([True, False, True]), encode_dense(np.ones(2)))
    with pytest.raises(ValueError, match="Have the message sent again|have the message sent again"):
        decode_survivors(message[:-cut], 3)
    flipped = bytes([message[0], message[1] ^ 4, *message[2:]])
    with pytest.raises(ValueError, match="checksum"):
        decode_survivors(flipped, 3)


def test_its_messages_are_not_those_of_an_operator():
    operators = [Identity(), *(kind(omega=1.0) for kind in (Dithering, RandK, BlockQuantizer))]
    first = {operator.encode(np.zeros(4))[0] for operator in operators}
    assert encode_survivors(np.ones(4, bool), encode_dense(np.ones(4)))[0] not in first
