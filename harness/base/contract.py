"""The version of the contract for the files of apps: it decides what can be checked of a run."""

from typing import Final

CONTRACT: Final = 2
"""The version of the app of this checkout; that of an image is in a label of the image."""
OLD_CONTRACT: Final = 1
"""The version of images without that label: nothing shows that their files belong to their run."""
NONCE_VARIABLE: Final = "VPOC_NONCE"
"""The environment variable in which a run gets its nonce."""
