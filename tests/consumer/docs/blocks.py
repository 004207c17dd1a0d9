"""The fenced code blocks of README.md, CONTRIBUTING.md and docs/*.md, the examples of the public headers, and the C++
source made of them.

The language of a block determines how it is tested:

    ```cpp      Compiled with clang++ and g++, and run. A program with main() needs nothing else. Every other
                block is a fragment, and the line before it names its context: <!-- context: NAME -->.
                The context is tests/consumer/docs/NAME.cpp: it declares what the fragment uses, and
                includes the fragment where it says #include DOCS_BLOCK.
    ```python   Run by script/test --peers after its context, tests/peers/docs/NAME.py.
    ```cmake    README.md's project, which tests/consumer/run builds.
    ```json     Each line, or the whole block, must be a JSON value.
    ```text     The output of a program, or a listing of files. It is not tested.
    ```         Commands, one per line: commands.py checks them.

Any other language is an error, and so is a fragment without a context.

A public header starts like this, with nothing but #pragma once before it:

    // Its purpose in two or three sentences.
    //
    // Example:
    //
    //   the code, indented by three spaces
    //
    // More: docs/page.md

The code is a block of C++: a program with main(), or a fragment with the context tests/consumer/docs/header.cpp.

    blocks.py generate FOLDER     writes FOLDER/blocks.inc for main.cpp; prints the names of the programs
"""

import dataclasses
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONTEXT = re.compile(r"<!-- context: (\w+) -->")
INCLUDE = re.compile(r"#include <\S+>")
HEADERS = "include/lockstep"
MORE = re.compile(r"// More: docs/\w+\.md(, docs/\w+\.md)*")
CONTEXT_FILES = {"cpp": "tests/consumer/docs/{}.cpp", "python": "tests/peers/docs/{}.py"}


@dataclasses.dataclass(frozen=True)
class Block:
    page: str  # relative to the root of the tree
    line: int  # of the fence; the text begins in the next one
    language: str
    context: str | None
    text: str

    @property
    def end(self):
        return self.line + self.text.count("\n") + 1

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def name(self):
        """An identifier of C++."""
        return re.sub(r"\W", "_", f"{pathlib.PurePath(self.page).name}_{self.line}")

    @property
    def is_program(self):
        return self.language == "cpp" and re.search(r"^int main\(", self.text, re.MULTILINE) is not None

    @property
    def own_header(self):
        """The line that includes the header whose example this is."""
        if not self.page.startswith(HEADERS):
            return ""
        return f"#include <{pathlib.PurePath(self.page).relative_to('include')}>"

    @property
    def context_file(self):
        return ROOT / CONTEXT_FILES[self.language].format(self.context)


class Mistakes(Exception):
    """What is wrong with the pages: sentences that begin with the page and the line."""


def pages():
    """Relative to the root of the tree."""
    return ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def read_page(page):
    blocks, start, context, before = [], None, None, ""
    lines = (ROOT / page).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("```"):
            before = line
        elif start is None:
            start, context = number, CONTEXT.fullmatch(before)
        else:
            language, text = lines[start - 1].strip()[3:], lines[start:number - 1]
            blocks.append(Block(page, start, language, context and context[1], "".join(f"{line}\n" for line in text)))
            start, before = None, ""
    if start is not None:
        raise Mistakes(f"{page}:{start}: the block has no end")
    return blocks


def headers(root=ROOT):
    """Public headers, relative to the root."""
    return sorted(str(path.relative_to(root)) for path in (root / HEADERS).glob("*.h"))


def read_header(header, root=ROOT):
    """The example of a public header. Mistakes: the header does not start with purpose, example and page."""
    lines = (root / header).read_text().splitlines()

    def fail(number, sentence):
        raise Mistakes(f"{header}:{number}: {sentence}")

    if lines[:2] != ["#pragma once", ""] or len(lines) < 3 or not re.match(r"// (?!Example:)\w", lines[2]):
        fail(3, "the header does not start with its purpose: write it as a comment after #pragma once")
    end = next((i for i, line in enumerate(lines[2:], 2) if not line.startswith("//")), len(lines))
    top = lines[:end]
    if "// Example:" not in top:
        fail(end, "the comment at the top has no example: write '// Example:' and the smallest use of the header")
    start = top.index("// Example:") + 2
    stop = next((i for i in range(start, end) if top[i] != "//" and not top[i].startswith("//   ")), end)
    text = "".join(f"{line[5:]}\n" for line in top[start:stop]).rstrip() + "\n"
    if top[start - 1:start] != ["//"] or not text.strip():
        fail(start, "the example is empty: its lines start with '//' and three spaces, after a line '//'")
    more = MORE.fullmatch(top[-1])
    if not more:
        fail(end, "the comment at the top does not end with '// More: docs/PAGE.md'")
    for page in re.findall(r"docs/\w+\.md", more[0]):
        if not (root / page).is_file():
            fail(end, f"there is no {page}")
    block = Block(header, start, "cpp", None, text)
    return block if block.is_program else dataclasses.replace(block, context="header")


def is_json(text):
    def parses(part):
        try:
            json.loads(part)
        except ValueError:
            return False
        return True

    return all(map(parses, text.splitlines())) or parses(text)


def mistake(block):
    """The sentence about a block that no test can check, or None."""
    if block.language not in ("cpp", "python", "cmake", "json", "text", ""):
        return (f"no test knows the language '{block.language}': tests/consumer/docs/blocks.py lists those "
                "there are")
    if block.language == "cmake" and block.page != "README.md":
        return "no test builds this project: the one that is built is README.md's"
    if block.language == "json" and not is_json(block.text):
        return "this is not JSON"
    if block.language not in CONTEXT_FILES or block.is_program:
        if block.context is not None:
            return "a context is for a fragment of C++ or Python"
        return None
    if block.context is None:
        return (f"this is a fragment without a context: write <!-- context: NAME --> into the line before it, "
                f"where {CONTEXT_FILES[block.language].format('NAME')} declares what it uses, or print a "
                "program with main()")
    if not block.context_file.is_file():
        return f"there is no context {block.context_file.relative_to(ROOT)}"
    return None


def read_all():
    """All blocks of all pages and public headers. Mistakes: one of them cannot be checked."""
    blocks = [block for page in pages() for block in read_page(page)] + [read_header(header) for header in headers()]
    sentences = [f"{block.place}: {sentence}" for block in blocks if (sentence := mistake(block))]
    if sentences:
        raise Mistakes("\n".join(sentences))
    return blocks


def includes(texts):
    return list(dict.fromkeys(line for text in texts for line in text.splitlines() if INCLUDE.fullmatch(line)))


def source(programs, fragments):
    """Every block in a namespace of its own. Headers come first: an #include inside of a namespace or a
    function is then the second one, and empty. Programs come before what fragments and contexts include,
    so that they have the headers that they print and no other."""
    yield from includes(block.text for block in programs)
    for block in programs:
        yield from (f"namespace {block.name} {{", f'#include "{block.name}.inc"', "}")
    yield from includes(text for block in fragments
                        for text in (block.own_header, block.context_file.read_text(), block.text))
    for block in fragments:
        yield from (f"namespace {block.name} {{", f'#define DOCS_BLOCK "{block.name}.inc"',
                    f'#include "{block.context_file}"', "#undef DOCS_BLOCK", "}")
    yield "constexpr Program kPrograms[] = {"
    yield from (f'    {{"{block.name}", {block.name}::main}},' for block in programs)
    yield "};"
    yield "constexpr Fragment kFragments[] = {"
    yield from (f'    {{"{block.place}", {block.name}::run}},' for block in fragments)
    yield "};"


def generate(folder):
    # tests/consumer/run builds README.md's program with README.md's project.
    blocks = [block for block in read_all() if block.language == "cpp" and block.page != "README.md"]
    programs = [block for block in blocks if block.is_program]
    fragments = [block for block in blocks if not block.is_program]
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        # Compilers name the page and its line where a block does not compile.
        (folder / f"{block.name}.inc").write_text(f'#line {block.line + 1} "{block.page}"\n{block.text}')
    (folder / "blocks.inc").write_text("\n".join(source(programs, fragments)) + "\n")
    print("\n".join(block.name for block in programs))


def main(arguments):
    if len(arguments) != 2 or arguments[0] != "generate":
        print(__doc__, file=sys.stderr)
        return 2
    try:
        generate(pathlib.Path(arguments[1]))
    except Mistakes as mistakes:
        print(mistakes, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
