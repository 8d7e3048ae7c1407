"""Volume-profile features of E-mini S&P 500 futures, and a training loop that says what it really did."""

__version__ = "0.1.0"
