"""The exchange: its calendar and trading sessions, the sequence of contracts, and the sessions that give rows."""
