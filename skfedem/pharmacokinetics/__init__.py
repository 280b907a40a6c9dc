"""Concentrations in compartments after doses: structural models of pharmacokinetics.

A structural model is a function ``f(parameters, regressors)`` of two dicts of arrays. Its value is
the predicted concentration. The functions work elementwise, so that the arrays may have any shapes
that broadcast; :func:`ode_model` takes the observations of a subject along the first axis.

=========  ===================================================================================
parameter  meaning
=========  ===================================================================================
ka         rate constant of first-order absorption, 1 / time
V, V1      volume of the central compartment; for oral doses, divided by the bioavailability
CL         clearance, volume / time; likewise
Q, V2      clearance between the two compartments, and volume of the second one; likewise
tlag       lag before absorption, time; optional, for oral doses
=========  ===================================================================================

The regressors are ``time`` and ``dose``, an amount given at time 0; for an infusion also ``rate``,
amount / time. Repeated doses are ``dose_1``, ``dose_time_1``, ``dose_2``, ``dose_time_2`` and so
on, for infusions also ``dose_rate_1`` and so on: :func:`doses` makes these columns of dosing
records. Their concentrations add up. Before a dose, its concentration is 0.

The rate constants ``k = CL / V`` and ``ka`` may be equal [1]_.

References
----------
.. [1] M. Gibaldi and D. Perrier, "Pharmacokinetics", 2nd edition, Marcel Dekker, 1982.
"""

from ._compartments import (
    one_compartment_bolus,
    one_compartment_infusion,
    one_compartment_oral,
    two_compartment_bolus,
    two_compartment_infusion,
    two_compartment_oral,
)
from ._doses import doses
from ._ode import ode_model

__all__ = [
    "doses",
    "ode_model",
    "one_compartment_bolus",
    "one_compartment_infusion",
    "one_compartment_oral",
    "two_compartment_bolus",
    "two_compartment_infusion",
    "two_compartment_oral",
]
