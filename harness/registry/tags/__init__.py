"""Known-good tags: promoted by rule, with evidence, and valid on the hosts for which the evidence is valid."""
