"""A policy from a GGUF file, as llama.cpp's users have them: loaded, trained and saved like any other."""

from pathlib import Path

import gguf
import numpy as np
import torch

from grpo_core.config import PolicyConfig, TaskConfig
from grpo_core.policy import load_policy
from grpo_core.tasks import load_task

NUM_LAYERS, HIDDEN, HEADS, INNER = 2, 64, 2, 128
SPECIAL = ["<|unk|>", "<|begin|>", "<|end|>"]


def write_gguf(file: Path) -> None:
    """A Llama with random weights, one token for each byte and one for "ab"."""
    draws = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    # The 256 characters that byte-level BPE writes bytes as: printable ones as they are, the rest from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [chr(256 + place) for place in range(256 - len(printable))]
    tokens = [*SPECIAL, *map(chr, printable), *rest, "ab"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        shapes |= {f"blk.{layer}.{name}_norm": (HIDDEN,) for name in ("attn", "ffn")}
        shapes |= {f"blk.{layer}.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.ffn_{name}": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = (HIDDEN, INNER)
    for name, shape in shapes.items():
        values = draws.normal(1.0 if len(shape) == 1 else 0.0, 0.05, shape).astype(np.float32)
        if len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_policy_from_a_gguf_file_is_saved_and_loaded_as_plain_weights(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    write_gguf(source / "model.gguf")
    task = load_task(TaskConfig(name="grade_school"))
    config = PolicyConfig(name=str(source), gguf_file="model.gguf")
    policy = load_policy(config, task)
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.float32}
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[7] += 1.0
    policy.save(tmp_path / "saved")
    again = load_policy(config, task, checkpoint=tmp_path / "saved")
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    text = task.prompt(task.train[0])
    assert again.encode_prompt(text) == policy.encode_prompt(text)
