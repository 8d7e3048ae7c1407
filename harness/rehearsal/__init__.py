"""`matrix rehearse`: takes a stack from lock to record, with an index on loopback in place of the real one."""
