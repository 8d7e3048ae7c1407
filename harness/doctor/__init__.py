"""Examines a machine before anything runs on it: causes of failing trainings, and the commands that fix them."""
