"""Plots of fitted estimators: the course of a fit, and the fitted matrix.

Displays follow scikit-learn's conventions: ``from_estimator`` computes and draws, the constructor
only stores data, ``plot`` draws, and the result is in ``figure_`` and ``ax_``. Displays require
matplotlib (``pip install matplotlib``), which is only imported when something is drawn.
"""

from ._convergence import ConvergenceDisplay
from ._imputation import ImputationDisplay

__all__ = ["ConvergenceDisplay", "ImputationDisplay"]
