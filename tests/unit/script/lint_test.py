"""script/lint-layers.py, lint-text.py and lint-docs.py find the mistakes that they check for."""

import importlib.util
import pathlib
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "script"


def load(name):
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), SCRIPT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layers = load("lint-layers")
text = load("lint-text")
docs = load("lint-docs")


class LayersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.write("src/base/error.cpp", "")
        self.write("src/comm/communicator.cpp", "")
        self.write("include/lockstep/error.h", "")
        self.write("include/lockstep/communicator.h", "")

    def write(self, name, *includes):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"#include {i}\n" for i in includes))

    def problems(self):
        return list(layers.problems(self.root))

    def assert_problem(self, pattern):
        found = self.problems()
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], pattern)

    def test_downward_is_clean(self):
        self.write("src/train/trainer.cpp", '"base/log.h"', '"train/loop.h"', "<lockstep/communicator.h>",
                   "<torch/torch.h>", "<vector>")
        self.write("examples/sine.cpp", "<lockstep/communicator.h>", "<torch/torch.h>")
        self.assertEqual(self.problems(), [])

    def test_upward(self):
        self.write("src/base/log.cpp", '"comm/work.h"')
        self.assert_problem("src/base/log.cpp: .*upward into comm: comm/work.h")

    def test_upward_through_a_public_header(self):
        self.write("src/launcher/spawn.cpp", "<lockstep/communicator.h>")
        self.assert_problem("layer launcher and includes upward into comm")

    def test_upward_through_a_relative_path(self):
        self.write("src/comm/work.h")
        self.write("src/base/log.cpp", '"../comm/work.h"')
        self.assert_problem("upward into comm")

    def test_data_knows_numbers_only(self):
        self.write("src/data/sampler.cpp", '"cluster/placement.h"')
        self.assert_problem("layer data .* cluster")

    def test_siblings(self):
        self.write("src/parallel/reducer.cpp", '"data/loader.h"')
        self.assert_problem("layer parallel .* data")

    def test_folders_inside_a_layer_do_not_include_each_other(self):
        self.write("src/comm/transport.cpp", '"comm/shm/backend.h"')
        self.write("src/comm/shm/backend.cpp", '"comm/shm/backend.h"', '"base/log.h"')
        self.assertEqual(self.problems(), [])
        self.write("src/comm/shm/backend.h", '"comm/wire/format.h"')
        self.write("src/comm/wire/format.h", '"../transport.h"')
        self.write("src/comm/transport.h")
        found = self.problems()
        self.assertEqual(len(found), 3, found)
        self.assertRegex(found[0], "src/comm/shm/backend.h: includes comm/wire/format.h, and src/comm/wire includes src/comm/shm too")

    def test_core_without_libtorch(self):
        self.write("src/cluster/nodes.cpp", "<ATen/core/Tensor.h>")
        self.assert_problem("includes LibTorch, which layer cluster does without")

    def test_public_headers(self):
        self.write("include/lockstep/communicator.h", '"base/log.h"')
        self.assert_problem("public and includes a private header")
        self.write("include/lockstep/communicator.h", "<torch/torch.h>")
        self.assert_problem("public and includes torch/torch.h")
        self.write("include/lockstep/communicator.h")
        self.write("include/lockstep/error.h", "<lockstep/communicator.h>")
        self.assert_problem("layer base and includes upward into comm")

    def test_public_header_of_no_layer(self):
        self.write("include/lockstep/orphan.h")
        self.assert_problem("orphan.h: the header has no layer")

    def test_unknown_folder(self):
        self.write("src/helpers/strings.h")
        self.assert_problem("no layer of")

    def test_examples_see_public_headers_only(self):
        self.write("src/train/trainer.h")
        for private in ('"train/trainer.h"', "<train/trainer.h>", '"../src/train/trainer.h"', '"gone.h"'):
            self.write("examples/sine.cpp", private)
            self.assert_problem("is an example")

    def test_recipes_see_public_headers_only(self):
        self.write("src/train/trainer.h")
        self.write("src/recipes/recipe.h")
        self.write("src/recipes/vit.cpp", '"recipes/recipe.h"', '"recipe.h"', "<lockstep/communicator.h>",
                   "<torch/torch.h>", "<fmt/format.h>", "<vector>")
        self.assertEqual(self.problems(), [])
        for private in ('"train/trainer.h"', "<train/trainer.h>", '"../train/trainer.h"', '"base/gone.h"'):
            self.write("src/recipes/vit.cpp", private)
            self.assert_problem("src/recipes/vit.cpp: is a recipe and includes a private header")

    def test_every_edge_goes_down(self):
        seen = []
        order = [*layers.LAYERS]
        for layer, below in layers.LAYERS.items():
            self.assertTrue(set(below) <= set(seen), f"{layer} of {order}")
            seen.append(layer)


class TextTest(unittest.TestCase):
    def remarks(self, name, content):
        return list(text.remarks(pathlib.Path(name), content))

    def test_clean(self):
        self.assertEqual(self.remarks("a.cpp", "int x;\n" * 400), [])
        self.assertEqual(self.remarks("a.md", "text\n" * 2000), [])

    def test_words(self):
        for line in ["// TO" "DO: later", 'path = "/ho' 'me/someone"', "GTEST_" "SKIP();", "TEST(A, DISABLED" "_B)",
                     "@pytest.mark." "skip", "no newline"]:
            found = self.remarks("a.cpp", line + ("" if line == "no newline" else "\n"))
            self.assertEqual(len(found), 1, line)

    def test_locks(self):
        for line in ["mutable std::mutex mutex_;", "std::shared_mutex mutex;", "const std::lock_guard lock(mutex_);",
                     "std::condition_variable_any ready_;"]:
            self.assertEqual(len(self.remarks("src/train/a.cpp", line + "\n")), 1, line)
            self.assertEqual(self.remarks("src/base/mutex.h", line + "\n"), [])
            self.assertEqual(self.remarks("tests/threads/a_test.cpp", line + "\n"), [])
        for line in ["base::Mutex mutex_;", "const std::scoped_lock lock(generator->mutex_);",
                     "const std::lock_guard lock(generator.mutex());"]:
            self.assertEqual(self.remarks("src/cuda/a.cpp", line + "\n"), [])


class DocsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        (self.root / "src").mkdir()
        self.write("docs/page.md", "")

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def problems(self):
        return list(docs.problems(self.root))

    def problems_of(self, name, page):
        self.write(f"docs/{name}", page)
        return self.problems()

    def test_paths(self):
        (self.root / "src" / "here.cpp").write_text("")
        self.assertEqual(self.problems_of("page.md", "`src/here.cpp`, `src/NAME.cpp`\n\n`src/gone.cpp`\n"),
                         ["docs/page.md:3: there is no src/gone.cpp"])

    def test_links(self):
        page = "[a](page.md), [b](page.md#part), [c](https://example.org/x), [d](#part)\n[e](gone.md#part)\n"
        self.assertEqual(self.problems_of("page.md", page), ["docs/page.md:2: the link leads nowhere: gone.md"])

    def test_folders_of_the_architecture(self):
        for folder in ["base", "comm"]:
            (self.root / "src" / folder).mkdir()
        page = "```text\n| comm |\n| base |\n```\n| `src/base` | errors |\n| `src/comm` | collectives |\n"
        self.assertEqual(self.problems_of("architecture.md", page), [])
        self.assertEqual(self.problems_of("architecture.md", page.replace("| comm |", "").replace("`src/base`", "base")),
                         ["docs/architecture.md: the table of folders lacks src/base",
                          "docs/architecture.md: the picture lacks src/comm"])

    def test_a_header_starts_as_a_page(self):
        top = ("#pragma once\n\n// Adds numbers.\n//\n// Example:\n//\n//   add(1, 2);\n//\n"
               "// More: docs/page.md\n\nint add(int a, int b);\n")
        self.write("include/lockstep/add.h", top)
        self.assertEqual(self.problems(), [])
        for old, new, pattern in [
                ("// Adds numbers.\n//\n", "", "add.h:3: the header does not start with its purpose"),
                ("// Adds", "#include <vector>\n\n// Adds", "add.h:3: the header does not start with its purpose"),
                ("// Example:\n", "", "the comment at the top has no example"),
                ("//   add(1, 2);\n//\n", "", "the example is empty"),
                ("//   add(1, 2);", "// add(1, 2);", "the example is empty"),
                ("//\n// More: docs/page.md\n", "", "does not end with '// More: docs/PAGE.md'"),
                ("docs/page.md", "docs/page.md, docs/gone.md", "there is no docs/gone.md"),
        ]:
            self.write("include/lockstep/add.h", top.replace(old, new, 1))
            self.assertEqual(len(self.problems()), 1, new)
            self.assertRegex(self.problems()[0], pattern)


if __name__ == "__main__":
    unittest.main()
