"""Faults injected on purpose into real runs, to see that each is found, explained and survived."""
