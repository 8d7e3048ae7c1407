"""Two-level designs: which factors to set in which run, so that every factor's own effect shows in few runs."""

from itertools import count


def plackett_burman(factors: int) -> tuple[tuple[bool, ...], ...]:
    """A design whose rows say which factors are set: of every pair of columns all four combinations come equally often.

    It has p + 1 rows for the smallest prime p = 3 (mod 4) that is no less than the number of factors: 4 for up to 3
    factors, 8 for 7, 12 for 11, 20 for 19. One row sets every factor; of the other p, row i sets factor j unless j - i
    is 0 or a square modulo p (Plackett and Burman 1946; Paley's construction).
    """
    size = next(p for p in count(3, 4) if p >= factors and _is_prime(p))
    squares = {i * i % size for i in range(size)}
    cyclic = [tuple((column - row) % size not in squares for column in range(factors)) for row in range(size)]
    return (*cyclic, (True,) * factors)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
