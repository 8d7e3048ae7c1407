"""The one exception that is the user's to mend."""


class UserError(Exception):
    """Something the user can put right. Its text is one line: what, where, and what to do."""
