"""Examines a machine before anything runs on it: finds causes of failing trainings, and the commands that fix them."""
