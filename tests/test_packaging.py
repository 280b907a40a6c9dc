"""What is installed, and what is promised about it: imports, extras, lower bounds."""

import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from itertools import chain
from pathlib import Path

import pytest

from skfedem.torch import FederatedTorchClassifier

ROOT = Path(__file__).parents[1]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = METADATA["optional-dependencies"]
REQUIREMENTS = [*METADATA["dependencies"], *chain(*EXTRAS.values())]
OPTIONAL = ("matplotlib", "pandas", "statsmodels")

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
{first}
import skfedem
for module in pkgutil.walk_packages(skfedem.__path__, "skfedem."):
    if module.name.startswith("skfedem.dask"):  # for those alone who have a cluster
        continue
    importlib.import_module(module.name)
    print(module.name)
# pandas aside, which scikit-learn itself imports where it is.
assert not [name for name in ("matplotlib", "statsmodels", "torch") if sys.modules.get(name)]
"""


def imported(first=""):
    """Names of all modules, imported in a Python of its own after some first statement."""
    code = IMPORT_EVERYTHING.format(first=first)
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def modules():
    paths = [path.relative_to(ROOT) for path in (ROOT / "skfedem").rglob("*.py")]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    return {name for name in names - {"skfedem"} if not name.startswith("skfedem.dask")}


def test_nothing_optional_is_needed_to_import_everything():
    # None in sys.modules makes an import fail as if the package were not installed.
    assert imported(f"sys.modules.update(dict.fromkeys({OPTIONAL}))") == modules()


def test_nothing_optional_is_imported_unasked():
    assert imported() == modules()


def test_dask_is_asked_for_by_its_name():
    code = "import sys; sys.modules['distributed'] = None; import skfedem.dask"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "skfedem.dask requires distributed, which is not installed." in run.stderr


def test_torch_is_asked_for_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError
    with pytest.raises(ImportError, match="FederatedTorchClassifier requires torch, .*not inst"):
        FederatedTorchClassifier(object).fit([[0.0], [1.0]], [0, 1])


def test_documented_modules_are_there_without_an_import_of_their_own():
    code = """
import sys, skfedem
assert "skfedem.datasets" not in sys.modules
pages = ("compression", "datasets", "inspection", "participation", "pharmacokinetics")
pages += ("preprocessing", "priors", "results", "theory")
assert set(pages) <= set(dir(skfedem))
print(*(getattr(skfedem, page).__name__ for page in pages))
try:
    skfedem.nothing
except AttributeError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names, error = run.stdout.splitlines()
    reference = (ROOT / "doc" / "api.rst").read_text(encoding="utf-8")
    shown = re.findall(r"^   (skfedem\.\w+)$", reference, re.MULTILINE)
    # Those who deploy, or have a cluster or torch, import these themselves.
    others = {"skfedem.dask", "skfedem.deploy", "skfedem.torch"}
    assert {*names.split()} | others == set(shown)
    assert error == "module 'skfedem' has no attribute 'nothing'"


def test_annotations_are_announced():
    assert files("skfedem").joinpath("py.typed").is_file()


# ---- dependencies


def requirements():
    """Lower bound of each package that skfedem or one of its extras may need, by name."""
    found = [re.fullmatch(r"([\w.-]+)>=([\d.]+)", text) for text in REQUIREMENTS]
    return {match[1]: match[2] for match in found if match}


def pins():
    lines = (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_requirement_has_a_lower_bound():
    for text in REQUIREMENTS:
        extras = re.fullmatch(r"skfedem\[([\w,-]+)\]", text)
        if extras:
            assert set(extras[1].split(",")) <= EXTRAS.keys(), text
        else:
            # Flower and NVIDIA FLARE change their interfaces, so theirs have upper bounds, too.
            assert re.fullmatch(r"[\w.-]+>=\d[\d.]*(,<\d[\d.]*)?", text), text


def test_the_oldest_versions_tested_are_the_lower_bounds():
    bounds = requirements()
    packages = [text.partition(">=")[0] for text in METADATA["dependencies"]]
    tested = {name for name in (*packages, "pandas", "matplotlib", "pytest", "hypothesis")}
    assert tested <= pins().keys()
    for name in tested:
        bound = bounds[name].split(".")
        assert pins()[name].split(".") == bound + ["0"] * (3 - len(bound)), name


def test_extras_that_are_spoken_of_exist():
    paths = [*ROOT.glob("*.md"), *ROOT.glob("doc/*.rst"), *ROOT.glob(".ci/*")]
    paths += [*ROOT.glob("examples/**/*.py"), *ROOT.glob("skfedem/**/*.py")]
    spoken = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        spoken += [
            (path.name, extra)
            for names in re.findall(r"(?:skfedem|[\"'` ]\.)\[([a-z][a-z, ]*)\]", text)
            for extra in re.split(r", *", names)
        ]
    assert {"test", "plot", "ebird", "docs", "lint", "dev"} <= {extra for _, extra in spoken}
    assert not [(name, extra) for name, extra in spoken if extra not in EXTRAS]
