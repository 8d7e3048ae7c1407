"""Training whose weights lie in one vector, for small networks that torch's own calls would slow down."""
