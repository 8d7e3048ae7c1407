"""The exchange: its calendar and trading sessions, contracts that follow each other, and sessions that give rows."""
