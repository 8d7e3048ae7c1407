"""Training with all weights in one vector, for small networks in which torch's own calls take most of the time."""
