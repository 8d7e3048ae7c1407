"""One run after the other: those of a fixed plan, of a goal, of stages, or spread over hosts."""
