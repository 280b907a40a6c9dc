"""Writes the job in the folder "jobs"."""

from pathlib import Path

from nvflare.job_config.api import FedJob

from skfedem.deploy.nvflare import FitController, Relay

job = FedJob("skfedem", min_clients=3)
job.set_app_packages(["skfedem"])  # it is installed, so the job contains no code
job.to_server(FitController(Path(__file__).with_name("plan.toml").read_text(encoding="utf-8")))
job.to_clients(Relay())
job.export_job("jobs")
