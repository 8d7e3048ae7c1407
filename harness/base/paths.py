"""Where things of this checkout are. The harness runs from a checkout."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
APP = CHECKOUT / "app"
IMAGES = CHECKOUT / "images"
LOCKS = IMAGES / "locks"
CACHE = CHECKOUT / ".cache"
ENVIRONMENTS = CACHE / "envs"
APPS = CACHE / "apps"
DATA = CACHE / "data"
WHEELS = CACHE / "wheels"
BUILDS = CACHE / "builds"
