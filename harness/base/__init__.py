"""Basics that do not depend on the other rooms: errors, durable storage, interrupts, time."""
