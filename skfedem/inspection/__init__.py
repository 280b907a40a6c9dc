"""Plots of fitted estimators: the course of a fit, fitted matrices, and population models.

Displays follow scikit-learn's conventions: ``from_estimator`` computes and draws, the constructor
only stores data, ``plot`` draws, and the result is in ``figure_`` and ``ax_``. Displays require
matplotlib (``pip install matplotlib``), which is only imported when something is drawn.
"""

from ._convergence import ConvergenceDisplay
from ._goodness_of_fit import GoodnessOfFitDisplay
from ._imputation import ImputationDisplay
from ._individual_fit import IndividualFitDisplay
from ._predictive_check import VisualPredictiveCheckDisplay

__all__ = [
    "ConvergenceDisplay",
    "GoodnessOfFitDisplay",
    "ImputationDisplay",
    "IndividualFitDisplay",
    "VisualPredictiveCheckDisplay",
]
