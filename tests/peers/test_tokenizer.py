"""GPT-2's tokenizer of `lockstep generate` and `lockstep train gpt`, compared with Hugging Face's tokenizers: every code
point of Unicode, hostile texts, and random ones. The vocabulary is trained here, on the pages of this repository."""

import json
import pathlib
import random
import subprocess

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DOCS = pathlib.Path(__file__).parents[2] / "docs"
END_OF_TEXT = "<|endoftext|>"
SEED = 7

HOSTILE = [
    "", " ", "  ", "\n", "\t\n ", "a", " a", "a ", "a  ", "  a", "a\u00a0b", "\u00a0", "\u2028\u2029x", "\x85y", "\u3000 \u3000z",
    "\x1c\x1d\x1e\x1f", "\x00", "\x00a\x00", "\u200b", "\ufeffBOM", "\u180e", "a\u0085b",
    "don't", "DON'T", "we'll've'd'm're's't", "'s", " 's", "'S", "''s", "!'s", "a's b'", "\u2019s", "'ll'l", "'r", "'v", "'",
    "12345678901234567890", "1.5e-10", "\u0663\u0664", "\u00bd\u00b2\u2167\u3007", "a1b2", "x\u00b2", "1st 2nd", "\u4e00\u4e8c\u4e09",
    "e\u0301", "\u0301", "n\u0303o", "\u0e01\u0e33", "\u0915\u094d\u0937\u093f", "\u1100\u1161\u11a8", "\uac00",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f600\U0001f600", "\U00020000",
    "\U0010ffff", "\ufffd", "\ue000", "\ud7ff\ue000", "\uffff", "<|endoftext|", f"a{END_OF_TEXT}b", f"{END_OF_TEXT}{END_OF_TEXT}",
    f" {END_OF_TEXT} ", "<|endoftext|><", "<<|endoftext|>>", "\u0120\u010a", "\u0120", "\u00ad", "\u00a1\u00ff\u0100\u0143",
    "if (x) {\n\treturn y;\n}\n", "    indented\n        more\n\n\n", "\r\n\r\n", "a\r\nb", "--", "...", "a--b...c", "https://a.b/c?d=e&f",
    "\u05d0\u05d1 \u0627\u0644", "\u0130\u0131\u017f\u1e9e", "\u00df\u00e4\u00f6\u00fc", "\u01c5", "\u02b0", "\u2160", "\u24b6", "_x_", "\u203f",
    "a" * 20000, "ab" * 10000, " " * 5000 + "x", "\n" * 3000, "9" * 4000, "!" * 4000, "\u00e9" * 3000, "the " * 3000,
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The tokenizer, and the sets of files that it was saved to."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=[END_OF_TEXT], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([page.read_text() for page in sorted(DOCS.glob("*.md"))], trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "two").mkdir()
    tokenizer.model.save(str(folder / "two"))
    assert tokenizer.get_vocab_size() == 3000
    return tokenizer, [[folder / "tokenizer.json"], [folder / "two"],
                       [folder / "two" / "vocab.json", folder / "two" / "merges.txt"]]


def answers(bin_dir, files, texts):
    done = subprocess.run([bin_dir / "test" / "tokenize_text", *files], check=True, timeout=300, text=True,
                          input="".join(json.dumps(text) + "\n" for text in texts), capture_output=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_texts(count):
    draw = random.Random(SEED)
    alphabets = ["ab c'sdtlrevm", "aA1\u00e9\u0663 \n\t\u00a0.'", " \n\t\u2003\u3000a", "the of and in to ", "'\u2019 sSdDmM"]
    texts = []
    for _ in range(count):
        if draw.random() < 0.5:
            alphabet = draw.choice(alphabets)
            texts.append("".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 60))))
        else:
            codes = (draw.choice([draw.randrange(0x80), draw.randrange(0x3000), draw.randrange(0x110000)])
                     for _ in range(draw.randrange(1, 30)))
            texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
    return texts


def test_hostile_and_random_texts_have_the_same_tokens(bin_dir, trained):
    tokenizer, sets_of_files = trained
    texts = HOSTILE + random_texts(3000) + [page.read_text() for page in sorted(DOCS.glob("*.md"))]
    expected = [tokenizer.encode(text).ids for text in texts]
    for files in sets_of_files:
        for text, answer, ids in zip(texts, answers(bin_dir, files, texts), expected, strict=True):
            assert answer["tokens"] == ids, repr(text[:80])
            assert answer["returns"], repr(text[:80])


def test_every_code_point_is_cut_alike(bin_dir, trained):
    _, sets_of_files = trained
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = []
    for start in range(0, len(codes), 2048):
        # Behind a letter, a number, another character and a space.
        texts.append("".join(f"a{c}1{c}!{c} {c}\n" for c in map(chr, codes[start:start + 2048])))
    for text, answer in zip(texts, answers(bin_dir, sets_of_files[0], texts), strict=True):
        # A character of a piece is a byte of the text.
        assert answer["pieces"] == [len(piece) for piece, _ in splitter.pre_tokenize_str(text)], hex(ord(text[1]))
