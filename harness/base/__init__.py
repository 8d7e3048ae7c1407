"""Basics that know nothing of the rest: errors, durable storage, interrupts, time."""
