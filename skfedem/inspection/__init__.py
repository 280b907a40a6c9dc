"""Plots of fitted estimators: how a fit went, and what was fitted.

Displays follow scikit-learn's conventions: ``from_estimator`` draws, the constructor takes the data
alone, ``plot`` draws again, and ``figure_`` and ``ax_`` are there to go on with. They need
matplotlib (``pip install matplotlib``), which is imported when something is drawn and not
before.
"""

from ._convergence import ConvergenceDisplay
from ._imputation import ImputationDisplay

__all__ = ["ConvergenceDisplay", "ImputationDisplay"]
