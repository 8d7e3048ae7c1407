"""The process of a check: `python -m vpoc.probes.check_process CALL`."""

import faulthandler
import resource
import sys
import time
import traceback
from importlib import import_module

from vpoc.errors import UserError
from vpoc.probes.check import FAILED, PASSED, SKIPPED, WRONG_RESULT
from vpoc.probes.site import Answer, Call, Site, Skipped, WrongResultError
from vpoc.ranks.child import die_with

LONGEST_MESSAGE = 400


def _main() -> int:
    """Run the check from the command line, write the answer to its folder, and return the exit status."""
    call = Call.from_json(sys.argv[1])
    die_with(call.parent)
    # Disable core files: a check that crashes must not leave gigabytes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(call.site.stacks_at - time.monotonic(), 0.01))
    answer, code = _answer(call)
    answer.write(call.site.folder)
    return code


def _answer(call: Call) -> tuple[Answer, int]:
    site = call.site
    try:
        module, _, function = call.check.partition(":")
        detail = getattr(import_module(module), function)(site, *call.arguments)
    except Skipped as reason:
        return Answer(SKIPPED, str(reason)), 0
    except WrongResultError as error:
        return Answer(WRONG_RESULT, _placed(str(error), site)), 1
    except UserError as error:
        return Answer(FAILED, str(error)), error.exit_code
    except Exception as error:
        traceback.print_exc()
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return Answer(FAILED, _placed(f"{type(error).__name__}: {first}"[:LONGEST_MESSAGE], site)), 1
    return Answer(PASSED, detail), 0


def _placed(message: str, site: Site) -> str:
    stage = site.stage()
    return f"{message} (at {stage})" if stage else message


if __name__ == "__main__":
    sys.exit(_main())
