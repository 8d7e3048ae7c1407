"""Carries the runs of a campaign to the nodes of a Slurm cluster."""
