"""Known-good tags: promotion by rule, with evidence, valid on hosts for which the evidence is valid."""
