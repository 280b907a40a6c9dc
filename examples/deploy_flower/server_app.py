"""Fits a Gaussian mixture over the nodes, and stores it beside the server's state."""

from pathlib import Path

import joblib
from flwr.serverapp import ServerApp

from skfedem import FederatedGaussianMixture
from skfedem.deploy import Server
from skfedem.deploy.flower import run

app = ServerApp()


@app.main()
def main(grid, context):
    state = Path(context.run_config["state"])
    mixture = FederatedGaussianMixture(3, omega=1.0, max_iter=3, random_state=0)
    server = Server(mixture, roster=["a", "b", "c"], state=state)
    joblib.dump(run(server, grid), state / "result.joblib")
