"""What others wrote is data: nothing of the library unpickles or evaluates it, or hands it to a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[3]
SOURCES = [
    path for folder in ("streamwarden", "dags", "plugins", "scripts") for path in (REPOSITORY / folder).rglob("*.py")
]

PICKLERS = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "jsonpickle", "imp", "code", "codeop"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("os.system", "os.popen", "os.execl", "os.execlp", "os.spawnl", "pandas.read_pickle", "pd.read_pickle"),
    *("np.load", "numpy.load", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.load_all"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "logging.config.listen"),
    *("asyncio.create_subprocess_shell", "ssl._create_unverified_context"),
}
IMPORTED_BY_NAME = {
    "streamwarden/driver/pipeline/module.py": "a job's module is code, which its YAML names",
    "streamwarden/airflow/notifications.py": "alerts.yaml names a notifier's class, which is code",
    "streamwarden/spark/quick_py4j.py": "the name is a constant",
}
SAFE_LOADERS = {
    ("streamwarden/store/config.py", "_UniqueKeys"),
    ("streamwarden/airflow/describe.py", "_Loader"),
}
"""Where yaml.load is called, with a loader that is a SafeLoader."""


def found_in(path: Path) -> Iterator[str]:
    """Yield what a file does that data must not reach."""
    name = path.relative_to(REPOSITORY).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"imports {one}" for one in names if one.split(".")[0] in PICKLERS)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {one.arg: one.value for one in node.keywords}
        if called in EVALUATORS or called in METHODS:
            yield f"calls {called}"
        if called.endswith("import_module") and name not in IMPORTED_BY_NAME:
            yield "imports a module by its name"
        if "shell" in given and not (isinstance(given["shell"], ast.Constant) and given["shell"].value is False):
            yield f"{called} with a shell"
        if "verify" in given and isinstance(given["verify"], ast.Constant) and given["verify"].value is False:
            yield f"{called} without a check of certificates"
        if called == "yaml.load":
            loader = given.get("Loader") or (node.args[1] if len(node.args) > 1 else None)
            if loader is None or (name, ast.unparse(loader)) not in SAFE_LOADERS:
                yield "yaml.load with another loader than a known safe one"


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    assert len(SOURCES) > 300
    assert {str(path.relative_to(REPOSITORY)): said for path in SOURCES if (said := [*found_in(path)])} == {}


def test_each_exception_is_still_needed() -> None:
    for name in IMPORTED_BY_NAME:
        assert "import_module(" in (REPOSITORY / name).read_text()
    for name, loader in SAFE_LOADERS:
        text = (REPOSITORY / name).read_text()
        assert re.search(rf"class {loader}\(.*SafeLoader\)|{loader}.*SafeLoader", text), name


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from cloudpickle import loads", "eval('1')", "exec(x)", "import yaml\nyaml.load(x)",
        "yaml.load(x, Loader=yaml.Loader)", "yaml.load(x, yaml.FullLoader)", "yaml.unsafe_load(x)",
        "subprocess.run(x, shell=True)", "subprocess.run(x, shell=y)", "os.system(x)", "import_module(x)",
        "httpx.get(x, verify=False)", "np.load(x)",
    ],
)  # fmt: skip
def test_what_is_looked_for_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.REPOSITORY", tmp_path)
    path = tmp_path / "x.py"
    path.write_text(text)
    assert [*found_in(path)]
