from __future__ import annotations

import inspect
import subprocess
import sys

from tlp.metaschedule import imports


def test_inspect_stack_is_restored(tvm):
    assert inspect.stack.__module__ == "inspect"


def test_light_stack_tells_what_the_real_one_tells():
    def probe():
        return imports._stack(), inspect.stack()

    light, real = probe()
    assert [f.function for f in light[1:5]] == [f.function for f in real[1:5]]
    assert [f.filename for f in light[1:5]] == [f.filename for f in real[1:5]]
    assert light[1].code_context == real[1].code_context
    assert light[1][3] == real[1][3] == "test_light_stack_tells_what_the_real_one_tells"


def test_a_missing_tvm_names_the_extra():
    code = (
        "import sys; sys.modules['tvm'] = None\n"
        "from tlp.errors import MissingExtraError\n"
        "from tlp.metaschedule.imports import load_tvm\n"
        "try: load_tvm()\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tlp[tune]" in done.stdout
