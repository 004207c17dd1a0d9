"""GPT-2's weights to and from Hugging Face's transformers: both continue a text with the same tokens."""

import os
import subprocess

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT = "Once upon a time"
TOKENS = 30


@pytest.fixture
def published(tmp_path):
    """A GPT-2 on bytes, saved as Hugging Face publishes models. Its weights are larger than those of a new model, so that
    the next tokens depend on all places."""
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=3, n_head=2, initializer_range=0.15,
                        bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "published")
    return model, tmp_path / "published"


def continued_by_transformers(model):
    prompt = torch.tensor([list(PROMPT.encode())])
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=TOKENS,
                            pad_token_id=0)
    return bytes(tokens[0].tolist())


def run(bin_dir, *words):
    environment = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_COMPUTE_SETUP="cpu")
    return subprocess.run([bin_dir / "lockstep", *words], check=True, timeout=300, capture_output=True,
                          env=environment).stdout


def continued_by_lockstep(bin_dir, checkpoint):
    return run(bin_dir, "generate", "--checkpoint", checkpoint, "--prompt", PROMPT, "--temperature", "0", "--max-tokens",
               str(TOKENS))[:-1]


def test_a_published_model_continues_a_text_alike(bin_dir, published):
    model, folder = published
    expected = continued_by_transformers(model)
    assert len(set(expected[len(PROMPT):])) > 3
    assert continued_by_lockstep(bin_dir, folder / "model.safetensors") == expected


def test_transformers_load_what_a_run_saved(bin_dir, published, tmp_path):
    _, folder = published
    (tmp_path / "book.txt").write_text("It was the best of times, it was the worst of times.\n" * 100)
    run(bin_dir, "train", "gpt", "--weights", folder / "model.safetensors", "--text", tmp_path / "book.txt", "--epochs", "1",
        "--max-batches", "3", "--batch-size", "4", "--run-dir", tmp_path / "run", "--progress", "none")
    tuned, report = GPT2LMHeadModel.from_pretrained(tmp_path / "run" / "hugging_face", output_loading_info=True)
    assert not any(report.values()), report
    assert not torch.equal(tuned.transformer.wte.weight, published[0].transformer.wte.weight)
    assert continued_by_lockstep(bin_dir, tmp_path / "run") == continued_by_transformers(tuned.eval())
