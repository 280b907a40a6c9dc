"""What an estimator's table is to a client, and what follows from the tables of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._federation import Federation
from .._typing import FloatArray, IntArray
from ..solvers.base import Solver
from ._tables import GIVEN


class OwnData(NamedTuple):
    """What the owner of a table gives: arguments of ``fit``, of one client.

    Attributes
    ----------
    X : table
    sample_weight, offset : array-like or None
    """

    X: Any
    sample_weight: Any = None
    offset: Any = None

    @property
    def given(self) -> list[str]:
        """Names of what there is in addition to the table."""
        return [name for name in GIVEN if getattr(self, name) is not None]


class OwnTable(NamedTuple):
    """Table of one client, as an estimator reads it.

    Attributes
    ----------
    n_rows : int
        Number of rows of its federation.
    columns : list of str or int
        Names of the features, or the number of features without names.
    facts : ndarray of shape (n_facts,)
        What all clients have to agree on depends on these.
    digest : str
        Digest of the rows, with all that is given.
    federation : callable
        ``federation(agreed)`` has the rows.
    complete : callable
        ``complete(told)`` is a model, or parameters, from what the server tells of them.
    solver : Solver or None
        Solver in place of that of the parameter ``solver``.
    classes : list or None
        Labels of the classes of its targets, in order.
    """

    n_rows: int
    columns: list[str] | int
    facts: FloatArray
    digest: str
    federation: Callable[[dict[str, Any]], Federation]
    complete: Callable[[Any], Any] = lambda model: model
    solver: Solver | None = None
    classes: list[Any] | None = None


class Agreed(NamedTuple):
    """What follows from the facts of all clients.

    Attributes
    ----------
    weights : ndarray of shape (n_clients,)
        w_i.
    told : dict
        What clients need to know.
    data : object
        What the fit needs to know in place of tables, see ``Elsewhere``.
    totals : ndarray of shape (n_clients,) or None
        Sums of the weights of each client's rows; None if all have the same weight.
    row_weight : float
        Unit of these weights, or the weight of every row.
    """

    weights: FloatArray
    told: dict[str, Any]
    data: Any = None
    totals: FloatArray | None = None
    row_weight: float = 1.0


class Reader(NamedTuple):
    """How tables are read for an estimator.

    Attributes
    ----------
    kind : type
        Class of the estimator.
    read : callable
        ``read(plan, data)`` is the ``OwnTable`` of a client's ``OwnData``.
    agree : callable
        ``agree(plan, lengths, facts)`` is ``Agreed``, from the numbers of rows of all clients and
        their facts (n_clients, n_facts).
    n_facts : callable
        ``n_facts(plan)`` is their number.
    are_possible : callable
        ``are_possible(facts)``: whether a client can have these.
    has_shape : bool
        Whether ``fit`` takes the shape of a matrix.
    known : callable
        ``known(plan, told, agreed)`` are fitted attributes that follow from the plan, from those
        that were told, and from what was agreed on.
    personal : callable or None
        ``personal(estimator, plan, data)`` are columns of what a fit says of a client's own rows.
    has_target, has_classes : bool
        Whether a column of the tables is the target, and whether its values are classes.
    own_model : callable or None
        ``own_model(states)`` are fitted attributes that follow from the states of a client.
    takes : tuple of str
        What a client may give in addition to its table.
    """

    kind: Any
    read: Callable[[dict[str, Any], OwnData], OwnTable]
    agree: Callable[[dict[str, Any], IntArray, FloatArray], Agreed]
    n_facts: Callable[[dict[str, Any]], int] = lambda plan: 0
    are_possible: Callable[[FloatArray], bool] = lambda facts: True
    has_shape: bool = False
    known: Callable[..., dict[str, Any]] = lambda plan, told, agreed: {}
    personal: Callable[[Any, dict[str, Any], OwnData], dict[str, Any]] | None = None
    has_target: bool = False
    has_classes: bool = False
    own_model: Callable[[tuple[Any, ...]], dict[str, Any]] | None = None
    takes: tuple[str, ...] = ()
