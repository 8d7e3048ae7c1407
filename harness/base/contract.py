"""The version of what apps say in their files: what can be asked of a run depends on it."""

from typing import Final

CONTRACT: Final = 2
"""That of the app of this checkout; that of an image is in a label of its own."""
OLD_CONTRACT: Final = 1
"""Of images without the label: nothing shows that their files belong to their run."""
NONCE_VARIABLE: Final = "VPOC_NONCE"
"""Environment variable by which a run gets its nonce."""
