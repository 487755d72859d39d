"""What our code never does, told from the code: each of these has been a hole in another studio."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_files import MODULES, TEMPLATES, lines_of, name_of, nodes

Call = tuple[str, int, str, ast.Call]

ADAPTER_LOADERS = {"PeftModel.from_pretrained", "PeftConfig.from_pretrained"}
"""Of peft, which runs no code of a folder."""
MODEL_LOADER = "heads.auto_class(config).from_pretrained"
LOADERS = {f"Auto{part}.from_pretrained" for part in ("Config", "Tokenizer", "ImageProcessor")}
LOADERS |= {MODEL_LOADER, "AutoModelForCausalLM.from_pretrained"}
"""All others in our code."""
GRADER_CHILD = "studio/graders/python_child.py"
"""Runs a user's grader: the only module that runs code from outside, in a sealed process."""
SEALED = {
    GRADER_CHILD: "_load",
    "studio/runner/check_file.py": "_read",
    "studio/runner/tokenizer/server.py": "_HANDLERS[request.kind]",
    "studio/training/data/template_child.py": "_render",
}
"""Where a process seals itself, and what it does only then with what a stranger made."""


@cache
def calls() -> list[Call]:
    return list(_calls())


def _calls() -> Iterator[Call]:
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Call):
                yield name_of(path), node.lineno, ast.unparse(node.func), node


@cache
def imported() -> set[tuple[str, str]]:
    """Return which module is imported where."""
    return set(_imported())


def _imported() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Import):
                yield from ((name_of(path), one.name) for one in node.names)
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                yield name_of(path), module
                # `from studio.graders import python_child` imports a module, too.
                yield from ((name_of(path), f"{module}.{one.name}") for one in node.names)


def given(node: ast.Call, name: str) -> str:
    """Return what is given for an argument, as it is written; nothing if it is not."""
    found = (ast.unparse(one.value) for one in node.keywords if one.arg == name)
    return next(found, "")


def test_model_loaders_always_set_trust_remote_code() -> None:
    loads = [
        (p, line, name, node)
        for p, line, name, node in calls()
        if name.endswith(".from_pretrained") and name not in ADAPTER_LOADERS
    ]
    silent = [(p, line) for p, line, _, node in loads if not given(node, "trust_remote_code")]

    assert ({name for _, _, name, _ in loads}, silent) == (LOADERS, [])


def test_weights_are_loaded_without_pickle() -> None:
    models = [node for *_, name, node in calls() if name == MODEL_LOADER]
    loads = [(p, line, node) for p, line, name, node in calls() if name == "torch.load"]

    assert [given(node, "use_safetensors") for node in models] == ["True"]
    assert [(p, line) for p, line, node in loads if given(node, "weights_only") != "True"] == []


def test_no_command_uses_shell() -> None:
    shells = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}

    found = [(p, line) for p, line, name, _ in calls() if name in shells]
    found += [(p, line) for p, line, _, node in calls() if given(node, "shell")]

    assert found == []


def test_worker_processes_do_not_inherit_stdin() -> None:
    """A prompt of a library's would wait there for a yes."""
    starts = [
        (p, line, given(node, "stdin"), given(node, "capture_output"))
        for p, line, name, node in calls()
        if name == "subprocess.Popen" and p.startswith("studio/worker/")
    ]

    assert [(p, line) for p, line, stdin, _ in starts if not stdin] == []
    assert len(starts) >= 3


@pytest.mark.parametrize("name", ["eval", "exec", "compile", "__import__"])
def test_only_sealed_grader_process_runs_code_from_outside(name: str) -> None:
    assert {path for path, _, called, _ in calls() if called == name} <= {GRADER_CHILD}


def test_sealed_grader_process_seals_itself_and_is_imported_nowhere() -> None:
    """Imported anywhere else, it would bring `exec` into a process without a seal."""
    module = ".".join(Path(GRADER_CHILD).with_suffix("").parts)
    lines = {called: line for path, line, called, _ in calls() if path == GRADER_CHILD}

    assert {path for path, name in imported() if name.startswith(module)} == set()
    assert lines["seal.seal"] < lines["_load"]


@pytest.mark.parametrize(("path", "strange"), SEALED.items())
def test_what_runs_or_reads_what_strangers_made_is_sealed_first(path: str, strange: str) -> None:
    found = [(line, called) for where, line, called, _ in calls() if where == path]
    seals = [line for line, called in found if called in {"seal", "seal.seal"}]
    (used,) = [line for line, called in found if called == strange]

    assert len(seals) == 1
    assert seals[0] < used


def test_chat_templates_are_rendered_in_sealed_processes_only() -> None:
    """Where the renderer is known, and which process renders in itself: the tokenizer service."""
    uses = {path for path, _, called, _ in calls() if "apply_chat_template" in called}
    named = {
        name_of(path)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Constant) and "chat_template_utils" in str(node.value)
    } | {path for path, name in imported() if "chat_template_utils" in name}
    here = {path for path, _, called, _ in calls() if called.endswith("render_in_this_process")}

    assert uses == set()
    assert named == {
        *(f"studio/training/data/{name}.py" for name in ("template_child", "template_process")),
        # The text of a script, which runs outside the studio.
        "studio/services/recipe_scripts/training_script.py",
    }
    assert here == {"studio/runner/tokenizer/main.py"}


def test_only_children_for_strangers_seal_themselves() -> None:
    """A seal cannot be taken down: a process that goes on to work must not have one."""
    assert {path for path, _, called, _ in calls() if called in {"seal", "seal.seal"}} == set(
        SEALED
    )


@pytest.mark.parametrize(
    "module", ["pickle", "marshal", "shelve", "dill", "cloudpickle", "tarfile"]
)
def test_unsafe_deserialisation_modules_are_not_imported(module: str) -> None:
    assert [path for path, name in imported() if name == module] == []


def test_only_web_package_creates_jinja_environments() -> None:
    """Only pages have an environment of Jinja; chat templates are rendered by sealed processes."""
    made = {p for p, _, name, _ in calls() if name.endswith(("Environment", "Jinja2Blocks"))}

    assert [path for path in made if not path.startswith("studio/web/")] == []


def test_safe_filter_is_used_only_on_string_literals() -> None:
    marked = [
        (place, line)
        for place, line in lines_of(TEMPLATES)
        for before in [part.rstrip() for part in line.split("| safe")[:-1]]
        if not before.endswith(("'", '"'))
    ]

    assert marked == []
