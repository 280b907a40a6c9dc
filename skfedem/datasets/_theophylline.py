"""Theophylline concentrations of twelve subjects: published measurements, as facts."""

from __future__ import annotations

import numpy as np
from sklearn.utils import Bunch

from .._data.long_tables import as_table

# Of each subject: weight in kg, dose in mg/kg, and hours after the dose; concentrations in mg/L.
_SUBJECTS = """
79.6 4.02  0 0.25 0.57 1.12 2.02 3.82 5.1 7.03 9.05 12.12 24.37
  0.74 2.84 6.57 10.5 9.66 8.58 8.36 7.47 6.89 5.94 3.28
72.4 4.40  0 0.27 0.52 1 1.92 3.5 5.02 7.03 9 12 24.3
  0 1.72 7.91 8.31 8.33 6.85 6.08 5.4 4.55 3.01 0.9
70.5 4.53  0 0.27 0.58 1.02 2.02 3.62 5.08 7.07 9 12.15 24.17
  0 4.4 6.9 8.2 7.8 7.5 6.2 5.3 4.9 3.7 1.05
72.7 4.40  0 0.35 0.6 1.07 2.13 3.5 5.02 7.02 9.02 11.98 24.65
  0 1.89 4.6 8.6 8.38 7.54 6.88 5.78 5.33 4.19 1.15
54.6 5.86  0 0.3 0.52 1 2.02 3.5 5.02 7.02 9.1 12 24.35
  0 2.02 5.63 11.4 9.33 8.74 7.56 7.09 5.9 4.37 1.57
80 4.00  0 0.27 0.58 1.15 2.03 3.57 5 7 9.22 12.1 23.85
  0 1.29 3.08 6.44 6.32 5.53 4.94 4.02 3.46 2.78 0.92
64.6 4.95  0 0.25 0.5 1.02 2.02 3.48 5 6.98 9 12.05 24.22
  0.15 0.85 2.35 5.02 6.58 7.09 6.66 5.25 4.39 3.53 1.15
70.5 4.53  0 0.25 0.52 0.98 2.02 3.53 5.05 7.15 9.07 12.1 24.12
  0 3.05 3.05 7.31 7.56 6.59 5.88 4.73 4.57 3 1.25
86.4 3.10  0 0.3 0.63 1.05 2.02 3.53 5.02 7.17 8.8 11.6 24.43
  0 7.37 9.03 7.14 6.33 5.66 5.67 4.24 4.11 3.16 1.12
58.2 5.50  0 0.37 0.77 1.02 2.05 3.55 5.05 7.08 9.38 12.1 23.7
  0.24 2.89 5.22 6.41 7.83 10.21 9.18 8.02 7.14 5.68 2.42
65 4.92  0 0.25 0.5 0.98 1.98 3.6 5.02 7.03 9.03 12.12 24.08
  0 4.86 7.24 8 6.81 5.87 5.22 4.45 3.62 2.69 0.86
60.5 5.30  0 0.25 0.5 1 2 3.52 5.07 7.07 9.03 12.05 24.15
  0 1.25 3.96 7.82 9.72 9.75 8.57 6.59 6.11 4.57 1.17
"""

_DESCRIPTION = """Theophylline

Serum concentrations of theophylline, an anti-asthmatic drug, in twelve subjects during 25 hours
after an oral dose: eleven measurements of each, one of them just before the dose.

id      number of the subject, 1 to 12
time    hours after the dose
dv      concentration in mg/L, the dependent variable
dose    dose in mg
weight  body weight in kg

Measured by R. Upton; published in A. J. Boeckmann, L. B. Sheiner and S. L. Beal, "NONMEM Users
Guide: Part V", NONMEM Project Group, University of California, San Francisco, 1994.
"""


def load_theophylline() -> Bunch:
    """Load theophylline concentrations of twelve subjects, 132 measurements.

    Each subject received one oral dose at time 0. The first measurement of a subject is just before
    it, where models of absorption predict 0: with an error that is proportional to the prediction,
    leave these rows out.

    Returns
    -------
    Bunch
        - ``data`` : DataFrame with 132 rows, or dict of ndarray where pandas is not installed. The
          columns are ``id`` (int), ``time`` (hours), ``dv`` (concentration in mg/L), ``dose`` (mg)
          and ``weight`` (kg);
        - ``DESCR`` : str, description and source.

    See Also
    --------
    skfedem.FederatedNonlinearMixedEffects : Population models of such measurements.

    References
    ----------
    .. [1] A. J. Boeckmann, L. B. Sheiner and S. L. Beal, "NONMEM Users Guide: Part V", NONMEM
       Project Group, University of California, San Francisco, 1994.

    Examples
    --------
    >>> from skfedem.datasets import load_theophylline
    >>> data = load_theophylline().data
    >>> len(data["dv"]), float(max(data["dv"]))
    (132, 11.4)
    """
    table = np.array(_SUBJECTS.split(), dtype=float).reshape(12, 24)
    weights, doses, times, values = table[:, 0], table[:, 1], table[:, 2:13], table[:, 13:]
    columns = {
        "id": np.repeat(np.arange(1, 13), 11),
        "time": times.ravel(),
        "dv": values.ravel(),
        "dose": np.repeat((doses * weights).round(6), 11),
        "weight": np.repeat(weights, 11),
    }
    return Bunch(data=as_table(columns), DESCR=_DESCRIPTION)
