"""Lockstep's HJSON reader compared with hjson-py, which DeepSpeed uses."""

import json
import pathlib
import random
import subprocess

import hjson

CORPUS = pathlib.Path(__file__).parents[1] / "fuzz"


def no_duplicates(pairs):
    """As in DeepSpeed, a duplicate key is an error."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is there twice")
    return {"object": [[key, value] for key, value in pairs]}


def theirs(path):
    """('value', document) or ('error', text)."""
    try:
        with open(path, encoding="utf-8") as file:
            value = hjson.load(file, object_pairs_hook=no_duplicates)
    # hjson-py reads beyond the end of some texts.
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        return "error", str(error)
    if not (isinstance(value, dict) and "object" in value) and value != {}:
        return "error", "not an object"
    return "value", {"object": []} if value == {} else value


def number(text):
    """The value that hjson-py reads from the text of a number."""
    if not any(c in text for c in ".eE"):
        return int(text)
    value = float(text)
    return int(value) if abs(value) < 1e10 and int(value) == value else value


def with_numbers(value):
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    if isinstance(value, dict):
        return number(value["number"]) if "number" in value else {"object": with_numbers(value["object"])}
    return value


def ours(bin_dir, paths):
    done = subprocess.run([bin_dir / "test" / "dump_hjson", *paths], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(paths)
    return [("value", with_numbers(line["value"])) if "value" in line else ("error", line["error"]) for line in lines]


def typed(value):
    """Adds the type to a value, because True equals 1 in Python."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value).__name__, value


def compare(bin_dir, paths):
    """Checks that both readers return the same or both fail; returns how many documents were read."""
    read = 0
    for path, mine in zip(paths, ours(bin_dir, paths)):
        peer = theirs(path)
        assert mine[0] == peer[0], (path.read_bytes(), mine, peer)
        if mine[0] == "value":
            assert typed(mine[1]) == typed(peer[1]), path.read_bytes()
            read += 1
    return read


# Refused by Lockstep and accepted by hjson-py: invalid bytes, halves of surrogate pairs, and
# unlimited nesting.
STRICTER = {"hostile_nul", "hostile_half", "hostile_deep"}


def test_corpus(bin_dir):
    paths = [path for folder in ("hjson", "deepspeed") for path in sorted((CORPUS / folder).iterdir())]
    assert compare(bin_dir, [path for path in paths if path.name not in STRICTER]) > 30
    stricter = [path for path in paths if path.name in STRICTER]
    assert [kind for kind, _ in ours(bin_dir, stricter)] == ["error"] * len(STRICTER)


TEXTS = ["", "a", "a b", "it's", 'say "x"', "true", "null", "1", "1e5", "-", "# no", "// no", "/* no */", "{", "}", "[",
         "a: b", "a, b", "\u00e9\u6f22\U0001f600", "line\nline", "tab\tx", "back\\slash", "'''", "auto", " space "]
NUMBERS = ["0", "-0", "1", "-17", "1.5", "1.0", "1e5", "1E+5", "2.5e-3", "1e10", "123456789012", "01", "+1", ".5", "1.", "1e"]


class Writer:
    """Writes random documents that use everything that HJSON allows to omit or add."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def space(self):
        return self.pick("", "", " ", "\n", "\t", "  ", "# note\n", "// note\n", "/* note */", "/* two\nlines */ ")

    def text(self, indent):
        value = self.random.choice(TEXTS)
        kind = self.pick("json", "json", "single", "plain", "lines")
        if kind == "single":
            return "'" + json.dumps(value)[1:-1].replace("\\\"", '"').replace("'", "\\'") + "'"
        if kind == "plain":
            return self.pick("plain text", "./path", "auto", "10:30", "a#b", "http://x/y // z", value.split("\n")[0] or "x")
        if kind == "lines":
            return f"\n{indent}'''\n{indent}first\n{indent}  'second' \"x\"\n\n{indent}'''"
        return json.dumps(value, ensure_ascii=self.pick(True, False))

    def value(self, depth):
        kind = self.pick("text", "text", "number", "word", "object", "array") if depth < 5 else "number"
        if kind == "text":
            return self.text("  " * depth)
        if kind == "number":
            return self.random.choice(NUMBERS)
        if kind == "word":
            return self.pick("true", "false", "null", "True", "nul")
        count = self.random.randrange(4)
        if kind == "array":
            return "[" + self.space() + "".join(self.value(depth + 1) + self.end() for _ in range(count)) + "]"
        return "{" + self.space() + self.members(depth + 1, count) + "}"

    def end(self):
        return self.space() + self.pick(",", "\n", ",\n", " ,", ",,", "") + self.space()

    def members(self, depth, count):
        result = ""
        for i in range(count):
            key = self.pick(f"k{i}", f'"k{i}"', f"'k {i}'", f"k{i} ", f"k{self.random.randrange(3)}", "a.b-c", "")
            result += key + ":" + self.space() + self.value(depth) + self.end()
        return result

    def document(self):
        members = self.members(1, self.random.randrange(1, 5))
        # For a string in three quotes on the first line, hjson-py counts the column from the end.
        return self.pick("\n", "# note\n") + (members if self.random.random() < 0.3 else "{" + members + "}\n")


def test_generated_documents(bin_dir, tmp_path):
    paths = []
    for seed in range(1500):
        path = tmp_path / f"{seed}.hjson"
        path.write_text(Writer(seed).document(), encoding="utf-8")
        paths.append(path)
    read = compare(bin_dir, paths)
    assert 200 < read < len(paths), read
