"""Deployed fits over NVIDIA FLARE, which carries the messages between its server and its sites.

A site only passes requests on to a client that its owner has started, see
``python -m skfedem.deploy join --socket``: the author of a job chooses neither table nor policy.
"""

from __future__ import annotations

import math
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from . import relay
from ._phases import run_phases

try:
    from nvflare.apis.controller_spec import Task
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import Shareable, make_reply
except ImportError:  # what needs them says so
    Executor = Controller = object

# Name of the tasks, and of the bytes in their data.
_NAME = "skfedem"


class FitController(Controller):
    """Runs a fit over the sites of a job; for the server.

    The fitted estimator is ``result.joblib`` in the job's result. A job with the same plan goes on
    where one that was aborted stood.

    Parameters
    ----------
    plan : str
        Contents of a plan as for ``python -m skfedem.deploy serve``, without certificates. The
        roster has names of sites; paths are relative to the workspace of the server.

    Raises
    ------
    ImportError
        If nvflare is not installed.
    """

    def __init__(self, plan: str) -> None:
        _check_installed(type(self))
        super().__init__()
        self.plan = plan

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing: the fit starts with the control flow."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the fit, and store it."""
        import joblib

        from ._plan_file import read_plan, server_of, timeout_of

        plan, workspace = read_plan(self.plan), fl_ctx.get_engine().get_workspace()
        server = server_of(plan, Path(workspace.get_root_dir()))
        sites = _Sites(self, abort_signal, fl_ctx)
        try:
            fitted = run_phases(
                server, sites, timeout_of(plan), lambda line: self.log_info(fl_ctx, line)
            )
        except _Aborted:
            server.stop()
            return
        joblib.dump(fitted, Path(workspace.get_run_dir(fl_ctx.get_job_id())) / "result.joblib")

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing: the state is on the disk."""

    def process_result_of_unknown_task(self, *arguments: Any) -> None:
        """Nothing: a reply that is late is asked for again."""


class _Aborted(Exception):
    """The job is aborted."""


class _Sites:
    """Transport by tasks of a controller."""

    def __init__(self, controller: Any, abort_signal: Any, fl_ctx: Any) -> None:
        self._controller, self._abort, self._fl_ctx = controller, abort_signal, fl_ctx
        self._done: SimpleQueue[Any] = SimpleQueue()

    def send(self, name: str, request: bytes, seconds: float) -> None:
        task = Task(
            name=_NAME,
            data=Shareable({_NAME: request}),
            timeout=math.ceil(seconds),
            task_done_cb=lambda task, fl_ctx: self._done.put((name, request, task)),
        )
        self._controller.send(task, self._fl_ctx, targets=[name])

    def received(self) -> list[tuple[str, bytes, bytes]]:
        if self._abort.triggered:
            raise _Aborted
        replies = []
        try:
            while True:
                name, request, task = self._done.get_nowait()
                results = [own.result for own in task.client_tasks if own.result is not None]
                replies.append((name, request, results[-1].get(_NAME, b"") if results else b""))
        except Empty:
            return replies


class Relay(Executor):
    """Passes requests on to the client of this site; for clients.

    The client listens at ``skfedem.socket`` in the folder ``local`` of the site.

    Raises
    ------
    ImportError
        If nvflare is not installed.
    """

    def __init__(self) -> None:
        _check_installed(type(self))
        super().__init__()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Reply to a request; an execution exception if no client listens."""
        folder = fl_ctx.get_engine().get_workspace().get_site_config_dir()
        try:
            reply = relay.ask(shareable[_NAME], Path(folder) / "skfedem.socket")
        except OSError as error:
            self.log_error(fl_ctx, f"no client of skfedem: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        result = make_reply(ReturnCode.OK)
        result[_NAME] = reply
        return result


def _check_installed(caller: type) -> None:
    """Raise ImportError if nvflare is not installed."""
    if Controller is object:
        from .._optional import check_installed

        check_installed(caller.__name__, "nvflare")
