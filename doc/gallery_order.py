"""Order of the examples in the gallery: a first one, whole tasks, the paper, its slides, costs."""

ORDER = (
    "quickstart.py",
    "plot_hospitals.py",
    "plot_published_index.py",
    "plot_seasons.py",
    "plot_bird_trends.py",
    "plot_mixed_effects_hospitals.py",
    "plot_figure_1.py",
    "plot_mnist.py",
    "plot_slides_naive.py",
    "plot_cohort_em.py",
    "plot_slides_compression.py",
    "plot_slides_participation.py",
    "plot_slides_weights.py",
    "plot_communication.py",
    "plot_step_size_theory.py",
    "plot_fedsparse_mnist.py",
    "plot_priors.py",
)


class InOrder:
    """Sort key of sphinx-gallery; examples that are not in the list come last, by name."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, filename):
        """Return the position of an example."""
        return (ORDER.index(filename) if filename in ORDER else len(ORDER), filename)

    def __repr__(self):
        # Sphinx compares the configuration of two builds by it.
        return "InOrder"
