"""What the contract tests of models, compressors, solvers and estimators share."""

import importlib.util
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from problems import (
    COMPRESSORS,
    ESTIMATORS,
    MODELS,
    ROW_MODELS,
    SETTINGS,
    SOLVERS,
    arrays_in,
    read_only,
)

every_compressor = pytest.mark.parametrize("operator", COMPRESSORS, ids=repr)

every_estimator = pytest.mark.parametrize("case", ESTIMATORS.values(), ids=ESTIMATORS)

every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def with_settings(argument, names):
    """All settings of a model with vectors of one length and of one without, some of the others."""
    pairs = [
        (name, setting)
        for name in names
        for setting in SETTINGS
        if name in ("mixture-full", "low-rank-poisson") or setting in ("exact", "everything")
    ]
    ids = [f"{name}-{setting}" for name, setting in pairs]
    values = [(name, SETTINGS[setting]) for name, setting in pairs]
    return pytest.mark.parametrize((argument, "setting"), values, ids=ids, indirect=[argument])


every_setting = with_settings("case", MODELS)

every_setting_of_rows = with_settings("row_case", ROW_MODELS)


def skip_if_sampled(model):
    if model.is_random:
        pytest.skip("a sampled E-step keeps this on average only")


def assert_same(got, want, **tolerance):
    """Nested tuples of arrays and numbers; the same bits unless tolerated otherwise."""
    if isinstance(want, tuple):
        assert type(got) is type(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other, **tolerance)
    elif want is None:
        assert got is None
    else:
        assert_allclose(got, want, **{"rtol": 0, **tolerance})


def frozen(*values):
    """All arrays of nested tuples, which nobody may write into any more, and their copies."""
    arrays = arrays_in(read_only(values))
    return arrays, [array.copy() for array in arrays]


def contract(folder, name="test_contract"):
    """What is in a file with the tests of a contract, which lies beside what it tests."""
    path = Path(__file__).parent / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)
