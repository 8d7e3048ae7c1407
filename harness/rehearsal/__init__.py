"""`matrix rehearse`: a stack on its way from lock to record, with an index on loopback in place of the real one."""
