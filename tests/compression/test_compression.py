"""Compression operators: paper's formulas, statistics, exact bytes, refusals."""

from __future__ import annotations

import pickle
from copy import deepcopy
from math import floor, sqrt

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.preprocessing import FunctionTransformer

from problems import COMPRESSORS, same_bits
from skfedem.compression import BlockQuantizer, Compressor, Dithering, Identity, RandK
from skfedem.compression._operator import Operator

# What every operator promises is asked in test_contract.py.
OPERATORS = [op for op in COMPRESSORS if isinstance(op, Operator)]
STEPPED = [op for op in OPERATORS if isinstance(op, Dithering | BlockQuantizer)]
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=repr)
# For what operators of a class do whatever their parameters.
every_class = pytest.mark.parametrize(
    "operator",
    [Identity(), Dithering(omega=1.0), BlockQuantizer(omega=1.0), RandK(k=5)],
    ids=lambda operator: type(operator).__name__,
)


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def draws(*shape, seed=1):
    return np.random.default_rng(seed).random(shape)


# --- the paper's formulas, coordinate by coordinate ------------------------------------------


def p_norm(x, p):
    return max((abs(v) for v in x), default=0.0) if p == np.inf else sqrt(sum(v * v for v in x))


def sign(v):
    return int(v > 0) - int(v < 0)


def pieces(x, length):
    length = length or max(len(x), 1)
    return [slice(i, i + length) for i in range(0, len(x), length)]


def dithering_oracle(x, xi, levels, p, bucket):
    out = []
    for piece in pieces(x, bucket):
        norm = p_norm(x[piece], p)
        for v, u in zip(x[piece], xi[piece], strict=True):
            s = levels
            out.append(norm / s * sign(v) * floor(s * abs(v) / norm + u) if norm else 0.0)
    return np.array(out)


def block_oracle(x, xi, block, p):
    out = []
    for piece in pieces(x, block):
        norm = p_norm(x[piece], p)
        for v, u in zip(x[piece], xi[piece], strict=True):
            out.append(norm * sign(v) * (u < abs(v) / norm) if norm else 0.0)
    return np.array(out)


def rand_k_oracle(x, xi, k):
    kept = sorted(range(len(x)), key=lambda j: xi[j])[:k]
    return np.array([len(x) / k * v if j in kept else 0.0 for j, v in enumerate(x)])


@pytest.mark.parametrize("length", [1, 2, 13, 60])
@pytest.mark.parametrize("norm", [2, np.inf])
@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e-200, 1e200])  # squares: 1e-320 has few digits
def test_paper_formulas(length, norm, scale):
    # The step is rounded to 24 bits: 2**-23 relative; no fixed draw here is that close to a jump.
    for seed in range(20):
        z, xi = gaussian(length, seed=seed), draws(length, seed=seed + 100)
        x = scale * z
        for levels, bucket in [(1, None), (3, None), (50, 6)]:
            got = Dithering(levels, norm=norm, bucket_length=bucket).compress(x, xi)
            want = scale * dithering_oracle(z, xi, levels, norm, bucket)
            np.testing.assert_allclose(got, want, rtol=2**-22, atol=0)
        for block in [1, 4, 100]:
            got = BlockQuantizer(block, norm=norm).compress(x, xi)
            want = scale * block_oracle(z, xi, block, norm)
            np.testing.assert_allclose(got, want, rtol=2**-22, atol=0)
        for k in [1, (length + 1) // 2, length]:
            got = RandK(k).compress(x, xi)
            np.testing.assert_allclose(got, scale * rand_k_oracle(z, xi, k), rtol=1e-15, atol=0)
        assert same_bits(Identity().compress(x, xi), x)


def test_rand_k_tie_keeps_the_first():
    xi = np.random.default_rng(0).choice([0.25, 0.5, 0.75], size=100)
    want = rand_k_oracle(np.ones(90), xi[:90], 45)  # sorted() is stable
    for lengths in [None, [90]]:
        np.testing.assert_array_equal(RandK(45).compress(np.ones(90), xi[:90], lengths), want)
    got = RandK(45).compress(np.ones(100), xi, [90, 10])
    np.testing.assert_array_equal(got, [*want, *np.ones(10)])


def test_block_norm_is_not_below_a_coordinate():
    # else the probability |x_j| / ||x|| would be above 1, and the mean too small
    x = gaussian(100, 1) * np.array([1.0, 0, 0, 0])
    assert (np.abs(BlockQuantizer(4).compress(x, np.full(x.shape, 0.5))) >= np.abs(x)).all()


# --- statistics ------------------------------------------------------------------------------


@every_operator
def test_a_variance_beyond_all_doubles_is_infinite(operator):
    assert operator.variance([1e300, 1e299, 1.0]).item() in (0.0, np.inf)


def test_rand_k_that_keeps_all_has_no_variance_whatever_the_size():
    for operator in (RandK(5), RandK(omega=1e-9)):
        assert operator.variance([1e200, -1.0]).tolist() == [0.0]


@pytest.mark.parametrize("norm", [2, np.inf])
def test_block_variance_formula(norm):
    x = gaussian(10, seed=5)
    products = sum(abs(x[p]).sum() * p_norm(x[p], norm) for p in pieces(x, 4))
    want = products - (x**2).sum()
    got = BlockQuantizer(4, norm=norm).variance(x)
    # A norm is rounded up to 24 bits, by 2^-23 of it at most.
    np.testing.assert_allclose(got, [want], rtol=2**-23 * products / want)


@pytest.mark.parametrize(
    ("operator", "x"),
    [
        (Dithering(levels=3), np.ones(36)),  # every coordinate half a step: 36 u^2 / 4 = ||x||^2
        (Dithering(levels=2), np.ones(100)),  # a fifth of a step each: sqrt(100) / 2 - 1
        (Dithering(levels=3), 3 * np.ones(64)),  # 3 / 8 of a step each: sqrt(64) / 3 - 1
        # the largest is three steps, the 16 others 3 / 8 of one: (sqrt(1 + 16 / 9) - 1) / 2
        (Dithering(levels=3, norm=np.inf), np.array([24.0] + 16 * [3.0])),
        (BlockQuantizer(block_length=16), np.ones(16)),
        # (a, 1, ..., 1) with a = 1 + sqrt(B): (sqrt(B) - 1) / 2 is reached
        (BlockQuantizer(block_length=9, norm=np.inf), np.array([4.0] + 8 * [1.0])),
        (RandK(k=3), gaussian(12)),
    ],
    ids=["dithering", "coarse", "between", "dithering-inf", "block-2", "block-inf", "rand-k"],
)
def test_omega_is_reached(operator, x):
    # All norms and steps are small integers: nothing is rounded but RandK's sum of 12 squares.
    assert operator.variance(x).item() == pytest.approx(
        operator.omega_for(len(x)) * (x @ x), rel=1e-14
    )


@pytest.mark.parametrize("norm", [2, np.inf])
@pytest.mark.parametrize("levels", [1, 2, 7, 100])
def test_dithering_omega_holds_for_any_vector(levels, norm):
    # A smaller step than ||x|| / levels only lowers the bound for the 2-norm: no tolerance but
    # rounding. For the other the largest coordinate is not quite a number of steps.
    beyond = 2**-23 if norm == np.inf else 0.0
    rng = np.random.default_rng(3)
    for q in [1, 2, 9, 200]:
        x = rng.normal(size=(200, q)) ** rng.choice([1, 3, 9], size=(200, 1))
        operator = Dithering(levels, norm=norm)
        omega = operator.omega_for(q)
        assert omega <= min(q / (4 * levels**2), sqrt(q) / levels)
        bound = omega * (1 + 1e-12) + beyond
        assert (operator.variance(x) <= bound * (x**2).sum(1)).all()
    # the worst vectors, which reach the bound, with steps that 24 bits do not hold
    x = np.repeat(np.linspace(0.1, 1.9, 37)[:, None], 4 * levels**2, axis=1)
    operator = Dithering(levels)
    bound = operator.omega_for(x.shape[1]) * (x**2).sum(1)
    assert (operator.variance(x) <= bound * (1 + 1e-12)).all()


# --- levels from a wanted omega --------------------------------------------------------------


LENGTHS = np.array([0, 1, 2, 3, 16, 210, 1000, 99_999])


@pytest.mark.parametrize("omega", [1e-3, 0.05, 0.5, 1.0, 2.0, 8.0, 1e3, 1e200])
@pytest.mark.parametrize(
    "kind",
    [
        Dithering,
        lambda **kw: Dithering(norm=np.inf, **kw),
        lambda **kw: Dithering(bucket_length=50, **kw),
        BlockQuantizer,
        lambda **kw: BlockQuantizer(norm=np.inf, **kw),
        RandK,
    ],
    ids=["dithering", "dithering-inf", "bucketed", "block-2", "block-inf", "rand-k"],
)
def test_wanted_omega_is_met_with_the_cheapest_level(kind, omega):
    operator = kind(omega=omega)
    got = operator.omega_for(LENGTHS)
    assert (got <= omega).all() and (got >= 0).all()
    assert [operator.omega_for(int(q)) for q in LENGTHS] == list(got)
    for q in LENGTHS[1:]:
        q = int(q)
        if isinstance(operator, Dithering):
            level = operator.level_for(q)
            cheaper = [kind(levels=level - 1)] if level > 1 else []
        elif isinstance(operator, RandK):
            cheaper = [kind(k=operator.level_for(q) - 1)] if operator.level_for(q) > 1 else []
        else:
            block = operator.level_for(q)
            cheaper = [kind(block_length=block + 1)] if block < q else []
        assert all(other.omega_for(q) > omega for other in cheaper)


@pytest.mark.parametrize("norm", [2, np.inf])
def test_dithering_on_one_level_is_the_block_quantizer(norm):
    x = np.random.default_rng(8).normal(size=(50, 30)).astype(np.float32).astype(np.float64)
    dithering, block = Dithering(levels=1, norm=norm), BlockQuantizer(30, norm=norm)
    assert dithering.omega_for(30) == pytest.approx(block.omega_for(30), rel=1e-14)
    # Norms are rounded to 24 bits, one way and the other.
    np.testing.assert_allclose(dithering.variance(x), block.variance(x), rtol=1e-5)


@pytest.mark.parametrize("level", [1, 2, 3, 7, 50, 199])
def test_omega_of_a_level_gives_the_level_back(level):
    q = 210
    dithering, sparse = Dithering(levels=level), RandK(k=level)
    assert Dithering(omega=dithering.omega_for(q)).level_for(q) == level
    assert RandK(omega=sparse.omega_for(q)).level_for(q) == level
    for norm in [2, np.inf]:
        block = BlockQuantizer(block_length=level + 1, norm=norm)
        assert BlockQuantizer(omega=block.omega_for(q), norm=norm).level_for(q) == level + 1


def test_no_omega_of_dithering_is_zero():
    # Which would say that nothing is compressed.
    lengths = np.array([1, 2, 7])
    for operator in (Dithering(2**20), Dithering(2**20, norm=np.inf)):
        assert (operator.omega_for(lengths) > 0).all()
    assert Dithering(omega=4.5e-13, norm=np.inf).omega_for(2) <= 4.5e-13
    assert Dithering(1, norm=np.inf, bucket_length=1).omega_for(30) == 0.25


def test_levels_where_rounding_puts_the_closed_form_one_off():
    # ceil(sqrt(q / (4 omega))) is 254 in floats; floor((1 + omega)^2) is 4, whose omega is above.
    assert Dithering(omega=50 / (4 * 253**2)).level_for(50) == 253
    assert BlockQuantizer(omega=np.nextafter(1.0, 0.0)).level_for(99) == 3


def test_omega_without_compression_is_zero():
    assert Identity().omega_for(4) == 0 and Identity().omega_for([3, 4]).tolist() == [0, 0]


# --- shapes ----------------------------------------------------------------------------------


def assert_sends_what_the_two_methods_say(operator, values, uniforms, lengths=None):
    sent, n_bytes = operator.send(values, uniforms, lengths)
    want = operator.compress(values, uniforms, lengths)
    assert same_bits(sent, want) and sent.flags.c_contiguous
    assert same_bits(n_bytes, operator.n_bytes(want, lengths))


def test_send_counts_bytes_of_integers_in_lowest_terms():
    # Messages tell the largest step that serves: all integers of a block may be even.
    x = np.array([[2.0, 4.0, 0.0, 6.0], [4.0, 6.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    for operator in [Dithering(6, norm=np.inf), Dithering(6, norm=np.inf, bucket_length=2)]:
        assert_sends_what_the_two_methods_say(operator, x, np.zeros(x.shape))
        assert_sends_what_the_two_methods_say(operator, 2.0**-130 * x, np.zeros(x.shape))


@every_class
def test_no_vectors_and_other_dtypes_and_layouts_are_compressed(operator):
    assert operator.compress(np.empty((0, 4)), np.empty((0, 4))).shape == (0, 4)
    assert operator.n_bytes(np.empty((0, 4))).shape == (0,)
    assert operator.compress([], [], []).shape == (0,)
    assert operator.compress(np.empty((3, 0)), np.empty((3, 0))).shape == (3, 0)
    for nothing in (np.empty((0, 4)), np.empty((3, 0))):
        assert_sends_what_the_two_methods_say(operator, nothing, nothing)
    assert_sends_what_the_two_methods_say(operator, [], [], [])
    xi = draws(6)
    small = np.array([0, -3, 2, 0, 1, 5], dtype=np.int32)
    assert same_bits(operator.compress(small, xi), operator.compress(small.astype(float), xi))
    for layout in [np.asfortranarray(gaussian(9, 33)), gaussian(33, 9).T]:
        copied = np.ascontiguousarray(layout)
        assert same_bits(operator.variance(layout), operator.variance(copied))
        sent = operator.compress(layout, draws(33, 9).T)
        assert same_bits(sent, operator.compress(copied, draws(33, 9).T.copy()))
        assert sent.shape == (9, 33)
    wide = gaussian(4, 12)
    assert same_bits(
        operator.compress(wide[:, ::2], draws(4, 6)),
        operator.compress(wide[:, ::2].copy(), draws(4, 6)),
    )


# --- codec -----------------------------------------------------------------------------------


@st.composite
def operators(draw):
    omega = draw(st.floats(1e-3, 30.0))
    norm = draw(st.sampled_from([2, np.inf]))
    length = draw(st.integers(1, 80))
    return draw(
        st.sampled_from(
            [
                Identity(),
                Dithering(omega=omega, norm=norm),
                Dithering(levels=length, norm=norm),
                Dithering(omega=omega, norm=norm, bucket_length=length),
                BlockQuantizer(omega=omega, norm=norm),
                BlockQuantizer(block_length=length, norm=norm),
                RandK(omega=omega),
                RandK(k=length),
            ]
        )
    )


@st.composite
def vectors(draw):
    length = draw(st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=length) ** draw(st.sampled_from([0, 1, 3, 9]))
    x *= rng.random(length) < draw(st.sampled_from([0.0, 0.01, 0.2, 1.0]))
    scale = draw(st.sampled_from([1.0, 1e-320, 1e-308, 1e-160, 1e-40, 1e30, 1e60, 1e200, 1e280]))
    mixed = draw(st.booleans())
    return x * scale * (10.0 ** rng.integers(-5, 5, size=length) if mixed else 1.0), rng


@settings(max_examples=400, deadline=None, derandomize=True)
@given(operators(), vectors())
def test_round_trip(operator, vector):
    x, rng = vector
    uniforms = rng.random(len(x))
    sent = operator.compress(x, uniforms)
    assert_sends_what_the_two_methods_say(operator, x, uniforms)
    data = operator.encode(sent)
    assert isinstance(data, bytes)
    assert same_bits(operator.decode(data, len(sent)), sent)
    assert operator.n_bytes(sent).tolist() == [len(data)]
    assert not sent[x == 0].any() and not np.signbit(sent[sent == 0]).any()


def test_the_longest_blocks_are_told_by_bytes():
    x, longest = gaussian(20), 2**52 - 1
    for operator in [Dithering(3, bucket_length=longest), BlockQuantizer(longest)]:
        sent = operator.compress(x, draws(20))
        assert same_bits(operator.decode(operator.encode(sent), len(sent)), sent)
    with pytest.raises(ValueError, match=f"bucket_length to be .* <= {longest}"):
        Dithering(3, bucket_length=longest + 1)


def test_message_needs_no_operator_parameters():
    sent = Dithering(omega=0.3, bucket_length=9).compress(gaussian(50), draws(50))
    data = Dithering(omega=0.3, bucket_length=9).encode(sent)
    assert same_bits(Dithering(levels=1, norm=np.inf).decode(data, len(sent)), sent)


def entropy(levels):
    """Lowest number of bits of independent coordinates with the observed levels."""
    frequencies = np.unique(levels, return_counts=True)[1] / levels.size
    return -(frequencies * np.log2(frequencies)).sum()


@pytest.mark.parametrize("omega", [0.05, 0.5, 1.0, 3.0, 8.0])
def test_short_vectors_take_few_bytes_beyond_their_entropy(omega):
    operator, x = Dithering(omega=omega), gaussian(300, 210)
    sent = operator.compress(x, draws(300, 210))
    steps = np.linalg.norm(x, axis=1, keepdims=True) / operator.level_for(210)
    bits = 8 * operator.n_bytes(sent).mean()
    # Form, checksum, step and two lengths take 11 bytes; how many integers are higher than each of
    # a few heights takes a byte each.
    assert bits <= 1.1 * 210 * entropy(np.rint(sent / steps)) + 8 * (11 + 5)
    assert omega != 1.0 or bits <= 2.5 * 210  # the requirement


@pytest.mark.parametrize("operator", [Dithering(omega=8.0), Dithering(omega=0.002)], ids=repr)
def test_long_vectors_come_close_to_entropy(operator):
    sent = operator.compress(gaussian(5000), draws(5000))
    bits = 8 * operator.n_bytes(sent).item() / 5000
    assert entropy(sent) - 1e-9 <= bits <= 1.1 * entropy(sent) + 0.05


# --- values ----------------------------------------------------------------------------------


@every_operator
def test_an_operator_is_a_value(operator):
    twin = eval(repr(operator), {**globals(), "inf": np.inf})
    assert twin == operator and hash(twin) == hash(operator)
    assert joblib.hash(twin) == joblib.hash(operator)
    for copied in [clone(operator), deepcopy(operator), pickle.loads(pickle.dumps(operator))]:
        assert copied == operator and type(copied) is type(operator)
    # as a parameter in a search
    assert clone(FunctionTransformer(kw_args=operator)).kw_args == operator
    assert len({joblib.hash(other) for other in OPERATORS}) == len(OPERATORS) == len({*OPERATORS})


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1, np.sqrt(2)], [1, np.pi, 1e-9], [1e-300, 1]])
@pytest.mark.parametrize("operator", [Dithering(levels=5), BlockQuantizer(3)], ids=repr)
def test_values_of_another_form_cannot_be_encoded(operator, values):
    with pytest.raises(ValueError, match="whole multiples"):
        operator.encode(values)


# Rounding up adds one to the levels, of which denormal steps may take up to twice as many.
@pytest.mark.parametrize(("operator", "most"), [(Dithering(levels=5), 11), (BlockQuantizer(3), 1)])
def test_more_steps_than_an_operator_takes_cannot_be_encoded(operator, most):
    assert operator.decode(operator.encode([1, most]), 2).tolist() == [1, most]
    with pytest.raises(ValueError, match=f"whole multiples, at most {most},"):
        operator.encode([1, most + 1])


def test_too_many_nonzeros_cannot_be_encoded():
    with pytest.raises(ValueError, match="at most 2 non-zeros, got 3"):
        RandK(2).encode([1.0, 2.0, 3.0])


@every_class
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(operator, bad):
    x = np.array([[1.0, 0.0, 2.0], [1.0, bad, 1.0]])
    with pytest.raises(ValueError, match="Expected finite values, got 1 NaN or inf"):
        operator.compress(x, draws(2, 3))
    with pytest.raises(ValueError, match="Expected finite values, got 1 NaN or inf"):
        operator.variance(x)
    with pytest.raises(ValueError, match="finite|whole multiples"):
        operator.encode(x[1])
    with pytest.raises(ValueError, match="finite|whole multiples"):
        operator.encode(np.array([bad]))


@pytest.mark.parametrize("operator", [*STEPPED, RandK(1)], ids=repr)
def test_overflow_is_refused(operator):
    with pytest.raises(ValueError, match="Rescale"):
        operator.compress(np.full(30, 1.7e308), draws(30))


@every_class
def test_shapes_and_types_are_checked(operator):
    x, xi = gaussian(2, 3), draws(2, 3)
    calls = [
        (ValueError, "shape of values", (x, xi[:1])),
        (ValueError, "shape", (x[None], xi[None])),
        (ValueError, "shape", (1.0, 0.5)),
        (ValueError, "sum 5", (x.ravel(), xi.ravel(), [2, 3])),
        (ValueError, "flat", (x, xi, [3, 3])),
        (ValueError, "-1", (x.ravel(), xi.ravel(), [7, -1])),
        (TypeError, "integers", (x.ravel(), xi.ravel(), [3.0, 3.0])),
        (TypeError, "real numbers", (x.astype(complex), xi)),
        (TypeError, "real", (x, xi.astype(str))),
        (ValueError, r"\[0, 1\)", (x, xi + 1)),
        (ValueError, r"\[0, 1\)", (x, np.ones((2, 3)))),
        (ValueError, r"\[0, 1\)", (x, xi - 1)),
        (ValueError, r"\[0, 1\)", (x, np.full((2, 3), np.nan))),
    ]
    for error, match, args in calls:
        for method in (operator.compress, operator.send):
            with pytest.raises(error, match=match):
                method(*args)
    with pytest.raises(ValueError, match="one vector"):
        operator.encode(x)
    with pytest.raises(TypeError, match="length to be an integer >= 0, got 3.0"):
        operator.decode(operator.encode(np.zeros(3)), 3.0)
    with pytest.raises(TypeError, match="integers"):
        operator.omega_for(2.5)
    with pytest.raises(ValueError, match="-3"):
        operator.omega_for([-3])


@pytest.mark.parametrize(
    ("kind", "name"), [(Dithering, "levels"), (BlockQuantizer, "block_length"), (RandK, "k")]
)
def test_constructors_say_what_to_do(kind, name):
    for arguments in [{}, {name: 3, "omega": 1.0}]:
        with pytest.raises(ValueError, match=f"exactly one of {name} and omega"):
            kind(**arguments)
    for level in [0, -1]:
        with pytest.raises(ValueError, match=f"{name} to be an integer >= 1 .*got {level}"):
            kind(level)
    for level in [1.5, True, "3"]:
        with pytest.raises(TypeError, match=f"{name} to be an integer"):
            kind(level)
    for omega in [0, -1.0, np.nan, np.inf]:
        with pytest.raises(ValueError, match="omega to be a (finite )?number > 0.*Identity"):
            kind(omega=omega)
    with pytest.raises(TypeError, match="omega to be a number"):
        kind(omega="1")
    if kind is not RandK:
        with pytest.raises(ValueError, match="norm to be 2 or numpy.inf, got 1"):
            kind(3, norm=1)


def test_other_parameter_errors():
    with pytest.raises(ValueError, match="bucket_length to be an integer >= 1"):
        Dithering(3, bucket_length=0)
    with pytest.raises(ValueError, match="levels to be .* <= 1048576"):
        Dithering(2**20 + 1)
    with pytest.raises(ValueError, match="needs .* levels"):
        Dithering(omega=1e-15).omega_for(210)
    with pytest.raises(TypeError, match="abstract"):
        Compressor()
    with pytest.raises(AttributeError, match="cannot assign"):
        Dithering(3).levels = 4


@pytest.mark.parametrize("operator", [Dithering, BlockQuantizer, RandK])
def test_subclasses_send_what_their_own_compress_returns(operator):
    class Doubled(operator):
        def compress(self, values, uniforms, lengths=None):
            return 2 * super().compress(values, uniforms, lengths)

    class Longer(operator):
        def n_bytes(self, values, lengths=None):
            return super().n_bytes(values, lengths) + 1

    rng = np.random.default_rng(0)
    values, uniforms = rng.normal(size=(3, 7)), rng.random((3, 7))
    plain, n_bytes = operator(omega=1.0).send(values, uniforms)
    np.testing.assert_array_equal(Doubled(omega=1.0).send(values, uniforms)[0], 2 * plain)
    np.testing.assert_array_equal(Longer(omega=1.0).send(values, uniforms)[1], n_bytes + 1)


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int64])
def test_levels_of_any_integer_type_are_used_as_pythons(number):
    # 4 * 100**2 leaves 8 bits.
    for make in (Dithering, BlockQuantizer, RandK):
        got, want = make(number(100)), make(100)
        assert got == want and repr(got) == repr(want)
        assert got.omega_for(300) == want.omega_for(300)
        x, uniforms = np.linspace(-1, 1, 300), np.linspace(0, 0.99, 300)
        assert got.encode(got.compress(x, uniforms)) == want.encode(want.compress(x, uniforms))


def test_the_least_number_has_a_step():
    # A seventh of it is 0, which is no step.
    assert Dithering(levels=7).compress([5e-324], [0.5]).tolist() == [5e-324]


def test_steps_that_are_rounded_down_leave_more_integers_than_levels():
    # A fifth of 7 least numbers is 1 of them.
    operator, vector = Dithering(levels=5, norm=np.inf), np.array([7, 1]) * 5e-324
    sent = operator.compress(vector, [0.5, 0.5])
    assert operator.decode(operator.encode(sent), 2).tolist() == sent.tolist() == vector.tolist()


def test_blocks_of_one_coordinate_are_exact():
    # omega is 0, although no float32 holds 0.1.
    operator = BlockQuantizer(block_length=4)
    assert operator.omega_for(1) == 0
    assert operator.compress([0.1], [1 - 2**-53]).tolist() == [0.1]
    x = gaussian(500)
    assert same_bits(BlockQuantizer(1).compress(x, draws(500)), x)
