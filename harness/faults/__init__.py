"""Injects faults on purpose into real runs, to test that each is found, explained and survived."""
