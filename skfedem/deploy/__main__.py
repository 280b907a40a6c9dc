"""Commands: ``python -m skfedem.deploy serve plan.toml`` and ``join --name a --data a.csv ...``."""

from __future__ import annotations

import argparse
import csv
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from .._optional import check_installed
from . import Client, Policy
from ._plan_file import function_of, read_plan, server_of, state_of, timeout_of
from ._storage import locked
from .http import Certificates, HTTPServer, join
from .relay import listen

# Lines are seen at once, also in a file.
say = partial(print, flush=True)


def serve(path: Path) -> None:
    """Fit the estimator of a plan, and store it beside the state."""
    plan, folder = read_plan(path.read_text(encoding="utf-8")), path.parent
    options, state = plan["server"], state_of(plan, folder)
    address = options.get("host", "127.0.0.1"), options.get("port", 8700)
    told: dict[str, Any] = {"timeout": timeout_of(plan), "report": say}
    if "certificates" in plan:
        files = {kind: folder / own for kind, own in plan["certificates"].items()}
        told["certificates"] = Certificates(**files)
    with locked(state):
        server = server_of(plan, folder)
        with HTTPServer(server, *address, **told) as served:
            say(f"{plan['estimator']['class']} for {', '.join(server.roster)} at {served.url}")
            if server.history_:
                say(f"goes on after phase {len(server.history_) - 1}")
            fitted = served.run()
        joblib.dump(fitted, state / "result.joblib")
    n_rounds = sum(own["question"] == "round" for own in server.history_)
    n_reset = sum(own["n_reset"] for own in server.history_)
    result = state / "result.joblib"
    say(f"{n_rounds} rounds; clients that lost their state: {n_reset}; result in {result}")


def take_part(options: argparse.Namespace) -> None:
    """Take part in a fit with the rows of a file."""
    files = options.certificate, options.private_key, options.authority
    if any(files) and not all(files):
        raise ValueError("Expected --certificate, --private-key and --authority, got fewer.")
    certificates = Certificates(*files) if all(files) else None
    policy = Policy(
        options.min_rows,
        options.max_rounds,
        tuple(options.allow_init),
        tuple(options.allow_estimators) if options.allow_estimators else None,
    )
    key = options.key.read_bytes() if options.key else b""
    state = options.state or Path(f"{options.name}-state")
    table, given = read_table(options.data), {}
    if options.sample_weight:
        given["sample_weight"] = take_column(table, options.sample_weight)
    if options.effort:
        given["offset"] = logarithms(take_column(table, options.effort), options.effort)
    with locked(state):
        client = Client(
            options.name, table, state, options.seed, policy, key, options.model, **given
        )
        say(f"{options.name}: {len(table)} rows of {options.data}; log in {state / 'log.txt'}")
        if options.socket:
            listen(client, options.socket, report=say)
        else:
            join(client, options.server, certificates=certificates, report=say)
    if not (state / "result").exists():
        raise SystemExit(1)
    personal = client.personal_result()
    if personal is not None:
        path = state / "personal.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(personal)
            writer.writerows(zip(*personal.values(), strict=True))
        say(f"results for the rows of {options.data} in {path}")


def read_table(path: Path) -> Any:
    """Table of a Parquet file, by its suffix, or of a CSV file in UTF-8."""
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        return _read_parquet(path) if is_parquet else read_csv(path)
    except ValueError as error:
        kind = "Parquet" if is_parquet else "CSV"
        raise ValueError(f"Expected a {kind} file, got {path} ({error}).") from error


def _read_parquet(path: Path) -> Any:
    check_installed("Reading a Parquet file", "pyarrow")
    import pandas as pd

    return pd.read_parquet(path)


def read_csv(path: Path) -> Any:
    """Table of a CSV file: without names of columns if the first line has only numbers or gaps."""
    with open(path, encoding="utf-8-sig") as file:
        first = file.readline()
    if not first:
        raise ValueError("it is empty")
    try:
        [*map(_number, first.split(","))]
    except ValueError:
        check_installed("Reading names of columns", "pandas")
        import pandas as pd

        return pd.read_csv(path, encoding="utf-8-sig")
    fields = first.strip().removeprefix(",").split(",")
    if len(fields) >= 2 and fields == [str(k) for k in range(len(fields))]:
        raise ValueError(
            "expected names of columns or none, got the numbers 0, 1, ...: write the file with "
            "header=False, index=False"
        )
    return np.loadtxt(path, delimiter=",", ndmin=2, converters=_number, encoding="utf-8-sig")


def _number(text: str) -> float:
    """Number of a field; NaN if it is empty."""
    return float(text.strip() or "nan")


def take_column(table: Any, name: str) -> Any:
    """Numbers of a column, which the table then lacks."""
    if name not in getattr(table, "columns", ()):
        raise ValueError(f"Expected a table with a column {name!r}, got none by this name.")
    return table.pop(name).to_numpy()


def logarithms(efforts: Any, name: str) -> Any:
    """Offsets of observations with these efforts."""
    if efforts.dtype.kind not in "iuf" or not ((efforts > 0) & np.isfinite(efforts)).all():
        raise ValueError(f"Expected positive numbers in column {name!r}, got others. Fill them in.")
    return np.log(efforts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m skfedem.deploy", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    served = commands.add_parser("serve", help="fit the estimator of a plan")
    served.add_argument("plan", type=Path)
    joined = commands.add_parser("join", help="take part with the rows of a file")
    joined.add_argument("--name", required=True, help="name in the roster")
    joined.add_argument("--data", required=True, type=Path, help="CSV file, or Parquet file")
    where = joined.add_mutually_exclusive_group(required=True)
    where.add_argument("--server", help="address of the server")
    where.add_argument("--socket", type=Path, help="socket of messages from Flower or NVFlare")
    joined.add_argument("--state", type=Path, help="folder of the state; NAME-state by default")
    joined.add_argument("--seed", type=int, help="by default drawn from the operating system")
    joined.add_argument("--key", type=Path, help="file of the key shared with the server")
    joined.add_argument("--sample-weight", help="column with the weight of each row")
    joined.add_argument("--effort", help="column with the effort of each count: hours, length, ...")
    joined.add_argument(
        "--model", type=function_of, help="structural model of a population, as module:function"
    )
    for name in ("certificate", "private-key", "authority"):
        joined.add_argument(f"--{name}", type=Path, help="PEM file")
    allowed = Policy()
    joined.add_argument("--min-rows", type=int, default=allowed.min_rows)
    joined.add_argument("--max-rounds", type=int, default=allowed.max_rounds)
    joined.add_argument("--allow-init", nargs="*", default=allowed.allow_init)
    joined.add_argument("--allow-estimators", nargs="*", help="all by default")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run a command; Ctrl-C stops it, and the same command goes on."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "serve":
            serve(options.plan)
        else:
            take_part(options)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
