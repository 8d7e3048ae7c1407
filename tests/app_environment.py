"""Makes `.cache/envs/cpu-test`: the cpu stack as locked, the test tools, and the app as it is in the checkout."""

from pathlib import Path

from harness.environments import find_python
from harness.errors import UserError
from harness.locks import lock_file, try_sources, uv
from harness.matrix_file import load_matrix
from harness.paths import APP, CHECKOUT, ENVIRONMENTS
from harness.plan import missing_python


def main() -> None:
    stack = load_matrix(CHECKOUT / "matrix.yaml").stacks["cpu"]
    base = find_python(stack.python)
    if base is None:
        raise SystemExit(missing_python(stack.python))
    folder = ENVIRONMENTS / "cpu-test"
    python = folder / "bin" / "python"
    tools = Path(__file__).parent / "app" / "requirements.txt"
    try:
        uv("venv", "--quiet", "--clear", "--python", base, folder)
        options = ("--quiet", "--require-hashes", "--compile-bytecode", "--python", python)
        try_sources(stack, "pip", "sync", *options, lock_file(stack), tools)
        uv("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", python, "--editable", APP)
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
