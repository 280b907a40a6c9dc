"""Every code block of the documentation runs, in order, and prints what is shown beside it.

A page is one session: its blocks share their names, as they do for a reader who pastes them one
after the other.
"""

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from inspect import getdoc, getmembers, isclass, isfunction, signature
from itertools import product
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import coo_array
from scipy.special import logsumexp
from scipy.stats import poisson
from sklearn.exceptions import ConvergenceWarning

import skfedem
from contracts import contract
from problems import LENGTHS, SETTINGS, SOLVERS, WEIGHTS, model_case, row_model_case, stack
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.compression import RandK
from skfedem.models._base import Start, Step
from skfedem.participation import participation_omega
from skfedem.solvers import _from_parameters
from skfedem.solvers._loop import run as loop
from skfedem.solvers._parameters import ResumableParameters
from skfedem.solvers._resume import checkpoint_of

ROOT = Path(__file__).resolve().parents[1]


MODELS = contract("models") | contract("models", "test_row_contract")
OPERATORS = contract("compression")
ROUNDS = contract("clients") | contract("solvers")
contracts = SimpleNamespace(**MODELS | OPERATORS | ROUNDS)
PAGES = [*sorted((ROOT / "doc").glob("*.rst")), ROOT / "README.md"]
# Allows numbers to be off by a fifth: when a noisy run stops hangs on its start, and k-means is not
# the same in every release of scikit-learn.
ROUGHLY = doctest.register_optionflag("ROUGHLY")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
NUMBER = re.compile(r"-?\b\d+(?:\.\d+)?\b")

RST_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)\.\. (?P<directive>code-block|code|sourcecode|parsed-literal)::"
    r"[ ]*(?P<language>\S*)[ ]*\n"
    r"(?P<body>(?:(?P=indent)[ ]+\S.*\n|[ ]*\n)+)",
    re.MULTILINE,
)
MD_BLOCK = re.compile(r"^```(?P<language>\S*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^(?P<indent>[ ]*)>>>.*\n(?:(?P=indent)[ ]*\S.*\n)*", re.MULTILINE)
OPTIONS = re.compile(r"\A\s*(?:[ ]*:[\w-]+:.*\n)+")

# Modules that are not everywhere: blocks that import them are left out where they are missing, and
# nothing after them may build on them.
NOT_EVERYWHERE = ("sklearn.callback", "torch", "distributed")


class Checker(doctest.OutputChecker):
    """doctest's, with the option ROUGHLY."""

    def check_output(self, want, got, optionflags):
        if optionflags & ROUGHLY:
            wanted, printed = ([float(n) for n in NUMBER.findall(text)] for text in (want, got))
            if len(wanted) != len(printed):
                return False
            if not np.allclose(printed, wanted, rtol=0.2, atol=0):
                return False
            want, got = NUMBER.sub("0", want), NUMBER.sub("0", got)
        return super().check_output(want, got, optionflags)


class Block(NamedTuple):
    """Code of a page: "python", "bash", "text" (what the block before prints) or "session"."""

    line: int
    language: str
    code: str


def blocks_of(text, *, markdown=False):
    """Blocks of a page in their order."""
    pattern, found, taken = (MD_BLOCK if markdown else RST_BLOCK), [], []
    for match in pattern.finditer(text):
        body = OPTIONS.sub("", match["body"])
        language = "session" if ">>>" in body else match["language"]
        line = text.count("\n", 0, match.end() - len(body))
        found.append(Block(line, language, dedent(body)))
        taken.append(match.span())
    for match in SESSION.finditer(text):
        if not any(start <= match.start() < stop for start, stop in taken):
            line = text.count("\n", 0, match.start())
            found.append(Block(line, "session", dedent(match[0])))
    return sorted(found)


def blocks_of_page(page):
    return blocks_of(page.read_text(encoding="utf-8"), markdown=page.suffix == ".md")


def run_page(blocks, name):
    """Run the blocks and return those that ran; an AssertionError tells page and output apart."""
    names, printed, ran = {"__name__": "__main__"}, None, []
    for block in blocks:
        place = f"{name}, line {block.line + 1}"
        if block.language == "text" and printed is not None:
            assert same(block.code, printed), f"{place} shows\n{block.code}\nprinted:\n{printed}"
        if lacks_a_module(block.code):
            continue
        printed = None
        if block.language == "python":
            output = io.StringIO()
            # Empty lines before it, so that a traceback has the line of the page.
            code = compile("\n" * block.line + block.code, name, "exec")
            with contextlib.redirect_stdout(output):
                exec(code, names)
            printed = output.getvalue()
            ran.append(block)
        elif block.language == "session":
            test = doctest.DocTestParser().get_doctest(block.code, names, name, name, block.line)
            test.globs = names
            report = io.StringIO()
            runner = doctest.DocTestRunner(Checker(), optionflags=FLAGS)
            runner.run(test, out=report.write, clear_globs=False)
            assert not runner.failures, f"{place}\n{report.getvalue()}"
            ran.append(block)
    return ran


def same(wanted, got, flags=FLAGS):
    return Checker().check_output(wanted, got, flags)


def lacks_a_module(code):
    return any(
        f"from {module} " in code and importlib.util.find_spec(module) is None
        for module in NOT_EVERYWHERE
    )


def test_contributing_says_what_each_module_is_for():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    places = {path.name for path in (ROOT / "skfedem").iterdir()} - {"__init__.py", "__pycache__"}
    assert {name for name in places if not re.search(rf"[/`]{name}[/`]", text)} == {"py.typed"}


def test_blocks_are_found_in_their_order():
    page = dedent("""\
        Some text.

        >>> a = 1
        >>> a
        1

        .. code-block:: python
           :caption: a caption

           b = 2

           c = 3

        - in a list:

          .. code-block:: bash

             true
        """)
    assert blocks_of(page) == [
        Block(2, "session", ">>> a = 1\n>>> a\n1\n"),
        Block(8, "python", "\nb = 2\n\nc = 3\n\n"),
        Block(16, "bash", "\ntrue\n"),
    ]
    assert blocks_of("```python\na = 1\n```\n", markdown=True) == [Block(1, "python", "a = 1\n")]


@pytest.mark.parametrize(
    "blocks",
    [
        [Block(0, "session", ">>> 1 + 1\n3\n")],
        [Block(0, "session", ">>> print('13 of 5')  # doctest: +ROUGHLY\n10 of 5\n")],
        [Block(0, "python", "print(1)\n"), Block(2, "text", "2\n")],
        [Block(0, "python", "assert a == 1\n")],
    ],
    ids=["session", "roughly", "printed", "undefined"],
)
def test_a_page_that_is_wrong_fails(blocks):
    with pytest.raises((AssertionError, NameError)):
        run_page(blocks, "a page")


def test_roughly_is_a_fifth():
    block = Block(0, "session", ">>> print('11 of 5.0')  # doctest: +ROUGHLY\n10 of 5.1\n")
    assert run_page([block], "page") == [block]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_every_block_runs(page, tmp_path, monkeypatch):
    blocks = blocks_of_page(page)
    if any("inspection" in block.code or "matplotlib" in block.code for block in blocks):
        pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "doc"))  # the files that doc/extending.rst shows
    code = [block for block in blocks if block.language in ("python", "session")]
    assert run_page(blocks, page.name) == [b for b in code if not lacks_a_module(b.code)]
    if page.name == "plots.rst":
        assert {path.name for path in tmp_path.iterdir()} == {"convergence.png"}
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_escapes(page):
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of_page(page)
    languages = [block.language for block in blocks]
    assert set(languages) <= {"python", "session", "bash", "text"}
    for before, language in zip([None, *languages], languages, strict=False):
        assert language != "text" or before in ("python", "bash")
    if page.suffix == ".rst":
        # A paragraph that ends with two colons would hold code that nothing runs.
        assert not re.search(r"^(?!\s*\.\.).*::$", text, re.MULTILINE)
        n_directives = len(re.findall(r"\.\. (?:code|sourcecode|parsed-literal)", text))
    else:
        n_directives = text.count("\n```") // 2
    n_prompts = sum(block.code.count(">>> ") for block in blocks if block.language == "session")
    assert text.count(">>> ") == n_prompts
    assert n_directives <= len(blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_is_there(page):
    # What a page tells to type is run by .ci/run or takes long: here only what it names is checked.
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    text = page.read_text(encoding="utf-8")
    commands = [block.code for block in blocks_of_page(page) if block.language == "bash"]
    for path in re.findall(r"(?:examples|tests|doc)/[\w/]+\.py", "\n".join([*commands, text])):
        assert (ROOT / path).exists(), path
    for names in re.findall(r"(?:skfedem|\.)\[([\w,-]+)\]", text):
        assert set(names.split(",")) <= set(extras), names


def public_callables():
    """Public functions, classes and methods."""
    modules = [skfedem, *(getattr(skfedem, name) for name in skfedem._MODULES)]
    for name, value in [(name, getattr(each, name)) for each in modules for name in each.__all__]:
        if callable(value):
            yield pytest.param(value, id=name)
        for method, function in getmembers(value, isfunction) if isclass(value) else []:
            if method[0] != "_" and function.__module__.startswith("skfedem"):
                yield pytest.param(function, id=f"{name}.{method}")


def documented_parameters(function):
    """Names and defaults of a docstring's parameters, in its order; no default where none is."""
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n\S|\Z)", getdoc(function) or "", re.DOTALL)
    for names, kind in re.findall(r"(?m)^(\w[\w, ]*)(.*)$", section[1] if section else ""):
        default = re.search("default=(.*)", kind)
        yield from ((name, default and default[1]) for name in names.strip().split(", "))


@pytest.mark.parametrize("function", public_callables())
def test_docstrings_have_the_parameters_of_signatures(function):
    parameters = dict(signature(function).parameters)
    parameters.pop("self", None)
    documented = list(documented_parameters(function))
    # Those that are as in another function may stand together, in one line.
    assert sorted(name for name, _ in documented) == sorted(parameters)
    for name, default in documented:
        if default is not None:
            assert repr(eval(default, {"numpy": np})) == repr(parameters[name].default)


@pytest.mark.skipif(os.name == "nt", reason="paths of the virtual environment")
def test_the_readme_shows_what_the_quickstart_prints(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"It prints\n\n```text\n(.*?)```", readme, re.DOTALL)[1]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = "".join(run.stdout.splitlines(keepends=True)[: shown.count("\n")])
    assert same(shown, printed, FLAGS | ROUGHLY), printed
    # Rounding decides nothing, but another release of k-means would start elsewhere.
    want, got = (re.findall(r"log-likelihood.*?(-[\d.]+) nats", text) for text in (shown, printed))
    assert list(map(float, got)) == pytest.approx(list(map(float, want)), rel=0.01)
    _, federated, without_controls = map(float, got)
    assert without_controls < federated - 0.02


# ---- formulas of doc/step_sizes.rst


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
@pytest.mark.parametrize("estimator", ["full", "tied", "known", "imputer"])
def test_minibatches_step_as_the_page_says(estimator, solver):
    b, k_in, p, lengths = 2, 5, 0.5, np.array([30, 40, 60, 70])
    n_w = lengths.sum() ** 2 / (lengths**2).sum()
    settings = {"solver": solver, "batch_size": b, "n_inner": k_in, "participation": p}
    settings |= {"compressor": RandK(omega=1.0), "omega": 1.0, "eval_every": None, "max_iter": 1}
    rng, omega_p = np.random.default_rng(0), participation_omega(1.0, p, len(lengths))
    if estimator != "imputer":
        # Half of it is kept: ω is 1.
        d, q = (2, 3 * (1 + 2 + 3)) if estimator == "full" else (3, 3 * (1 + 3))
        factor = 5 if estimator == "tied" else 1
        known = np.eye(d) if estimator == "known" else None
        kind = {"covariance_type": estimator.replace("known", "tied"), "fixed_covariance": known}
        gm = FederatedGaussianMixture(3, **kind, **settings, random_state=0)
        fit = partial(gm.fit, [rng.normal(size=(length, d)) for length in lengths])
        followed = 0.1 * n_w * b / (q * (1 + factor * omega_p))
        spider = 0.1 * np.sqrt(n_w * b)
    else:
        cells = [np.divmod(rng.choice(100, length, replace=False), 10) for length in lengths]
        clients = [coo_array((rng.normal(size=len(j)), (j, k)), shape=(10, 10)) for j, k in cells]
        fit = partial(FederatedMatrixImputer(**settings, random_state=0).fit, clients)
        m = lengths.max()
        followed = b / (m * (1 + 5 * omega_p))
        spider = 1.4 * np.sqrt(b / m)
    with pytest.warns(ConvergenceWarning):  # a single round
        step_size = fit().history_["step_size"][1]
    if solver == "vr_fedem":
        followed = spider * np.sqrt(p / (k_in * (1 + omega_p)))
    # The first bound of the page is met by both.
    assert followed < p / 2 * np.sqrt(n_w / omega_p)
    assert followed < p / 2
    assert step_size == pytest.approx(followed, rel=1e-12)


# ---- the files that the pages on extending show: what is asked of the shipped ones


@pytest.fixture
def shown(monkeypatch):
    """Import a module that stands beside the pages."""
    monkeypatch.syspath_prepend(str(ROOT / "doc"))
    return importlib.import_module


def contracts_of(argument):
    """Names of the contract's tests that take this argument, and each choice of all others."""
    found = []
    for name, test in OPERATORS.items():
        if name.startswith("test_") and argument in signature(test).parameters:
            marks = [mark.args for mark in getattr(test, "pytestmark", ())]
            others = {names: values for names, values, *_ in marks if names != argument}
            for chosen in product(*others.values()):
                found.append((name, dict(zip(others, chosen, strict=True))))
    return found


@pytest.mark.parametrize(("name", "others"), contracts_of("operator"))
def test_the_compressor_that_is_shown_keeps_the_contract(shown, name, others):
    operator = shown("bernoulli_mask").BernoulliMask(omega=1.0)
    getattr(contracts, name)(operator, **others)


def test_the_compressor_that_is_shown_has_all_tests_of_the_contract():
    assert len({name for name, _ in contracts_of("operator")}) > 12


@pytest.fixture
def shown_model_case(shown):
    """A row of ``problems.MODELS`` for the model that is shown."""
    model = shown("poisson_mixture").PoissonMixtureModel(n_components=2, n_features=2)
    rng = np.random.default_rng(0)
    rates = np.array([[3.0, 1.0], [12.0, 5.0]])
    federation = stack([rng.poisson(rates[rng.integers(2, size=m)]) for m in LENGTHS], WEIGHTS)
    parameters = tuple(
        model.parameters(rng.dirichlet([5.0, 5.0]), rates * rng.uniform(0.5, 2, size=(2, 2)))
        for _ in range(4)
    )

    def log_likelihoods(theta):
        joint = [
            np.log(weight) + poisson(rate).logpmf(federation.rows).sum(axis=1)
            for weight, rate in zip(theta.weights, theta.rates, strict=True)
        ]
        return logsumexp(joint, axis=0)

    return row_model_case(model, federation, parameters, log_likelihoods)


# Tests of the contract that take a model from the fixtures there, and nothing else.
OF_ONE_MODEL = [
    name
    for name, test in MODELS.items()
    if name.startswith("test_")
    and set(signature(test).parameters) in ({"case"}, {"row_case"})
    and not hasattr(test, "pytestmark")
]


@pytest.mark.parametrize("name", OF_ONE_MODEL)
def test_the_model_that_is_shown_keeps_the_contract(shown_model_case, name):
    assert len(OF_ONE_MODEL) > 10
    getattr(contracts, name)(shown_model_case)


@pytest.mark.parametrize("size", [0.1, 1.0, 1e3, 1e9])
def test_the_model_that_is_shown_stays_in_its_domain(shown_model_case, size):
    contracts.test_server_step_always_leads_to_parameters(shown_model_case, size)
    contracts.test_server_step_is_taken_whole_or_shortened(shown_model_case, size)
    contracts.test_server_step_stays_where_a_field_is_not_finite(shown_model_case, np.nan)


@pytest.mark.parametrize("lengths", [(4, 4, 4), (5, 1, 6)], ids=["equal", "ragged"])
def test_the_model_that_is_shown_takes_one_parameter_a_client(shown_model_case, lengths):
    contracts.test_expectation_takes_one_parameter_a_client(shown_model_case, lengths)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_solvers_run_the_model_that_is_shown(shown_model_case, setting):
    case, solver = shown_model_case, SOLVERS["vr_fedem"]
    contracts.test_the_servers_control_is_the_weighted_sum_of_the_clients(case, solver, setting)
    # Products of other shapes may round otherwise. 1e-12 is far below a step of an operator.
    contracts.test_a_client_does_alone_what_it_does_in_a_group(case, solver, setting, 1e-12)
    contracts.test_controls_of_both_sides_agree_when_messages_are_lost(case, solver, setting)


@pytest.fixture
def run_the_model_that_is_shown(shown):
    """Run it, or a class derived from it, on rows of unlike clients; these and the run."""
    shown_model = shown("poisson_mixture").PoissonMixtureModel
    rng = np.random.default_rng(0)
    federation = stack([rng.poisson(rates, size=(500, 2)) for rates in ([3, 1], [6, 4]) * 2])

    def run(derive=lambda model: model, resume_from=None, **settings):
        model = derive(shown_model)(n_components=2, n_features=2)
        settings = ResumableParameters(**settings)
        problem = _from_parameters.federated_problem(settings, model, federation.sizes)
        options = _from_parameters.options_of(settings, problem)
        theta = model.parameters(np.array([0.5, 0.5]), np.array([[2.0, 2.0], [7.0, 7.0]]))
        start = Start(model.statistics_of(theta), theta)
        with Workers() as workers:
            clients = LocalClients(federation, workers)
            solver = _from_parameters.SOLVERS[settings.solver]
            clients.join(solver, problem.task)
            checkpoint = checkpoint_of(
                settings, "", problem, clients, options.step_size, resume_from
            )
            end = loop(problem, start, options, clients, checkpoint=checkpoint)
            return clients, end

    return run


def sampled(model, temper=1.0):
    """The model with one draw of its component for each row, in place of the expectation.

    Unless ``temper`` is 1, it draws from a wrong posterior.
    """

    class Sampled(model):
        is_random = True

        def expectation(self, natural, features, lengths, sample_weight=None):
            exact = super().expectation(natural, features, lengths, sample_weight)
            by_client = natural.reshape(-1, self.n_components, 1 + self.n_features)
            n_rows = lengths if len(by_client) > 1 else len(features)
            joint = np.einsum("igj,ij->ig", np.repeat(by_client, n_rows, axis=0), features)
            # Uniform numbers that follow from the parameters and the row.
            uniforms = 1e5 * np.sin(1e3 * joint.sum(axis=1)) % 1
            first = uniforms < 1 / (1 + np.exp(temper * (joint[:, 1] - joint[:, 0])))
            drawn = 1.0 * np.column_stack([first, ~first])
            if sample_weight is not None:
                drawn *= sample_weight[:, None]
            of_rows = drawn[:, :, None] * features[:, None, :]
            starts = np.cumsum(lengths) - lengths
            statistics = np.add.reduceat(of_rows.reshape(len(features), -1), starts)
            return exact._replace(statistics=statistics)

    return Sampled


@pytest.mark.parametrize("name", OF_ONE_MODEL)
def test_a_model_whose_e_step_is_sampled_keeps_the_contract(shown_model_case, name):
    model = sampled(type(shown_model_case.model))(n_components=2, n_features=2)
    getattr(contracts, name)(shown_model_case._replace(model=model))


@pytest.mark.parametrize("temper", [0.5, 1.5])
def test_a_wrong_sampler_fails_the_contract(shown_model_case, temper):
    model = sampled(type(shown_model_case.model), temper)(n_components=2, n_features=2)
    with pytest.raises(AssertionError, match="not the posterior mean"):
        contracts.test_the_surrogate_touches_the_criterion_where_it_is_made(
            shown_model_case._replace(model=model)
        )


def test_a_model_without_a_bounded_domain_says_so(shown_model_case, shown):
    class Unbounded(shown("poisson_mixture").PoissonMixtureModel):
        def maximization(self, statistics):
            return super().maximization(np.maximum(statistics, 1e-3))

        def server_step(self, statistics, field, step_size, *, exact):
            proposal = statistics + step_size * field
            return Step(proposal, self.field_sq_norm(statistics, field), 0, step_size)

    case = shown_model_case._replace(model=Unbounded(n_components=2, n_features=2))
    check = contracts.test_server_step_is_taken_whole_or_shortened
    with pytest.raises(AssertionError, match="is_unbounded=True"):
        check(case, 1e3)
    check(case._replace(is_unbounded=True), 1e3)


@pytest.mark.parametrize("solver", ["fedem", "vr_fedem"])
def test_a_model_whose_e_step_is_sampled_has_no_exact_rounds(run_the_model_that_is_shown, solver):
    settings = {"solver": solver, "tol": 1e-6, "max_iter": 300}
    _, em = run_the_model_that_is_shown(tol=1e-12, max_iter=5000)
    clients, run = run_the_model_that_is_shown(sampled, **settings)
    model, federation = clients.task.model, clients.federation
    steps = run.history["step_size"][1:]
    parameters, together = run.server.parameters, np.arange(4)
    for alone in together:
        whole = model.all_rows(federation, parameters, together)
        part = model.all_rows(federation, parameters, together[[alone]])
        assert_array_equal(part.statistics[0], whole.statistics[alone])
    assert not run.criteria_before  # no round was exact
    assert (np.diff(steps) <= 0).all() and 0 < steps[-1] < 0.1 < steps[0]
    # Up to the noise of some draws of 2,000 rows.
    assert em.history["log_likelihood"][-1] - run.history["log_likelihood"][-1] < 1e-3


def test_a_model_that_gives_nan_is_to_blame_and_no_operator(run_the_model_that_is_shown):
    def failing(model):
        class Failing(model):
            def expectation(self, natural, features, lengths, sample_weight=None):
                sums = super().expectation(natural, features, lengths, sample_weight)
                return sums._replace(statistics=sums.statistics * np.nan)

        return Failing

    with pytest.raises(ValueError, match="^Expected finite values, got .* NaN or inf"):
        run_the_model_that_is_shown(failing, omega=1.0, control_init="zeros", eval_every=None)


def test_a_checkpoint_knows_the_model(run_the_model_that_is_shown, tmp_path):
    path = tmp_path / "run.npz"
    settings = {"checkpoint": path, "checkpoint_every": 5, "tol": 0, "max_iter": 5}
    run_the_model_that_is_shown(**settings)
    _, resumed = run_the_model_that_is_shown(resume_from=path, **settings | {"max_iter": 6})
    assert resumed.history["round"][-1] == 6
    says = "Expected a checkpoint of this run .* got one with (constants of the )?model="
    for other in (sampled, lambda model: partial(model, least_rate=1e-3)):
        with pytest.raises(ValueError, match=says):
            run_the_model_that_is_shown(other, resume_from=path, **settings | {"max_iter": 6})


def test_a_solver_has_to_tell_the_log_likelihood_of_exact_rounds(
    run_the_model_that_is_shown, monkeypatch
):
    fedem = SOLVERS["fedem"]

    def silent(*args):
        estimate, states = fedem.estimate(*args)
        return estimate._replace(log_likelihood=None), states

    monkeypatch.setitem(_from_parameters.SOLVERS, "fedem", fedem._replace(estimate=silent))
    with pytest.raises(ValueError, match="from solver 'fedem' in exact rounds, got None"):
        run_the_model_that_is_shown()
    run_the_model_that_is_shown(participation=0.5, max_iter=3)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", ["mixture-full", "low-rank-poisson"])
def test_the_solver_that_is_shown_keeps_the_contract(shown, model, setting):
    solver, case, setting = shown("svrg_fedem").SVRG_FEDEM, model_case(model), SETTINGS[setting]
    contracts.test_the_servers_control_is_the_weighted_sum_of_the_clients(case, solver, setting)
    contracts.test_client_half_is_pure(case, solver, setting)
    # Products of other shapes may round otherwise. 1e-12 is far below a step of an operator.
    contracts.test_a_client_does_alone_what_it_does_in_a_group(case, solver, setting, 1e-12)
    contracts.test_clients_tell_the_log_likelihood_of_all_their_rows(case, solver, setting)
    contracts.test_a_round_that_is_not_committed_leaves_no_trace(case, solver, setting)
    contracts.test_controls_of_both_sides_agree_when_messages_are_lost(case, solver, setting)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_solver_that_is_shown_tells_what_it_costs(shown, setting, monkeypatch):
    contracts.test_the_cost_is_the_number_of_rows_that_e_steps_read(
        model_case("mixture-full"), shown("svrg_fedem").SVRG_FEDEM, setting, monkeypatch
    )


@pytest.mark.parametrize("model", ["mixture-full", "low-rank-poisson"])
def test_the_solver_that_is_shown_is_unbiased_and_reduces_variance(shown, model):
    solver = shown("svrg_fedem").SVRG_FEDEM
    contracts.test_the_field_is_unbiased_for_the_mean_field(model, "everything", solver)
    case = model_case(model)
    contracts.test_minibatches_have_no_noise_at_rest_if_the_solver_says_so(case, solver)
    contracts.test_a_client_that_was_away_is_unbiased_when_it_is_back(case, solver)
    for setting in ("compressed", "minibatch", "minibatch-distinct"):
        contracts.test_each_round_draws_anew(case, solver, setting)


def test_the_solver_that_is_shown_ends_where_pooled_em_does(shown, monkeypatch):
    monkeypatch.setitem(_from_parameters.SOLVERS, "svrg", shown("svrg_fedem").SVRG_FEDEM)
    rng = np.random.default_rng(0)
    clients = [rng.normal(center, 1, size=(60, 2)) for center in (-3, 0, 3)]
    settings = {
        "n_components": 2,
        "covariance_type": "tied",
        "means_init": [[-2.0, -2.0], [2.0, 2.0]],
        "random_state": 0,
    }
    pooled = FederatedGaussianMixture(**settings, tol=1e-12, max_iter=500).fit(clients)
    svrg = FederatedGaussianMixture(
        **settings,
        solver="svrg",
        batch_size=10,
        omega=1.0,
        participation=0.7,
        step_size=0.2,
        tol=1e-10,
        max_iter=2000,
    ).fit(clients)
    # Its noise dies out with the steps. Both stop within a gain of tol from their fixed point,
    # which is quadratic in the distance from it; 1e-7 leaves three digits for slow directions.
    assert abs(svrg.score(clients) - pooled.score(clients)) < 1e-7


@pytest.mark.parametrize("setting", ["exact", "three", "everything"])
@pytest.mark.parametrize("model", ["mixture-full", "mixture-tied"])
def test_chains_that_follow_their_rows_keep_the_contract(shown, model, setting, monkeypatch):
    solver, case = shown("sampled_mixture").SAMPLED, model_case(model)
    setting = SETTINGS[setting]
    contracts.test_the_servers_control_is_the_weighted_sum_of_the_clients(case, solver, setting)
    contracts.test_client_half_is_pure(case, solver, setting)
    contracts.test_a_client_does_alone_what_it_does_in_a_group(case, solver, setting)
    contracts.test_a_client_needs_nobody_elses_rows(case, solver, setting)
    contracts.test_a_round_that_is_not_committed_leaves_no_trace(case, solver, setting)
    contracts.test_controls_of_both_sides_agree_when_messages_are_lost(case, solver, setting)
