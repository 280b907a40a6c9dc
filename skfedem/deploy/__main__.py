"""Commands: ``python -m skfedem.deploy serve plan.toml`` and ``join --name a --data a.csv ...``."""

from __future__ import annotations

import argparse
import csv
import tomllib
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from . import Client, Policy
from ._plan_file import function_of, server_of, state_of, timeout_of
from .http import Certificates, HTTPServer, join
from .relay import listen


def serve(path: Path) -> None:
    """Fit the estimator of a plan, and store it beside the state."""
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    folder = path.parent
    server, options = server_of(plan, folder), plan["server"]
    certificates = None
    if "certificates" in plan:
        files = {kind: folder / own for kind, own in plan["certificates"].items()}
        certificates = Certificates(**files)
    host, port = options.get("host", "127.0.0.1"), options.get("port", 8700)
    timeout = timeout_of(plan)
    with HTTPServer(server, host, port, timeout=timeout, certificates=certificates) as served:
        name, roster = plan["estimator"]["class"], ", ".join(server.roster)
        print(f"{name} for {roster} at {served.url}", flush=True)
        if server.history_:
            print(f"goes on after phase {len(server.history_) - 1}", flush=True)
        fitted = served.run()
    result = state_of(plan, folder) / "result.joblib"
    joblib.dump(fitted, result)
    n_reset = sum(own["n_reset"] for own in server.history_)
    print(f"{fitted.n_iter_} rounds; clients that lost their state: {n_reset}; result in {result}")


def take_part(options: argparse.Namespace) -> None:
    """Take part in a fit with the rows of a file."""
    certificates = None
    if options.certificate:
        certificates = Certificates(options.certificate, options.private_key, options.authority)
    policy = Policy(
        options.min_rows,
        options.max_rounds,
        tuple(options.allow_init),
        tuple(options.allow_estimators) if options.allow_estimators else None,
    )
    key = options.key.read_bytes() if options.key else b""
    state = options.state or Path(f"{options.name}-state")
    table, given = read_csv(options.data), {}
    if options.sample_weight:
        given["sample_weight"] = take_column(table, options.sample_weight)
    if options.effort:
        given["offset"] = logarithms(take_column(table, options.effort), options.effort)
    client = Client(options.name, table, state, options.seed, policy, key, options.model, **given)
    print(f"{options.name}: {len(table)} rows of {options.data}; log in {state / 'log.txt'}")
    if options.socket:
        listen(client, options.socket)
    else:
        join(client, options.server, certificates=certificates)
    personal = client.personal_result() if (state / "result").exists() else None
    if personal is not None:
        path = state / "personal.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(personal)
            writer.writerows(zip(*personal.values(), strict=True))
        print(f"results for the rows of {options.data} in {path}")


def read_csv(path: Path) -> Any:
    """Table of a CSV file: with names of columns if the first line has any."""
    with open(path, encoding="utf-8") as file:
        first = file.readline()
    try:
        [*map(float, first.split(","))]
    except ValueError:
        import pandas as pd

        return pd.read_csv(path)
    return np.loadtxt(path, delimiter=",", ndmin=2)


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
    joined.add_argument("--data", required=True, type=Path, help="CSV file")
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
    except (OSError, TypeError, ValueError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
