"""The process that renders with one chat template, without Jinja's sandbox.

Started as `studio.training.data.template_child` is.
"""

import os
from importlib import import_module

from studio.training.data import template_child
from tests.security.escaped_templates import remove_sandbox
from tests.security.grader_attacks import MODULES


def main(parent: int) -> None:
    for name in MODULES:
        import_module(name)
    del os.environ["STUDIO_SIGN_IN"]  # Set by the package of all tests.
    remove_sandbox()
    template_child.main(parent)
