import pytest
import torch

from grpo_core.decoding import Decoder

PROMPTS = [[5, 9, 12], [7, 30, 41, 8, 22, 17], [11]]


def opened(model, prompt_index, capacity=6):
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS])
    mask = torch.tensor([[True] * len(prompt) + [False] * (longest - len(prompt)) for prompt in PROMPTS])
    decoder = Decoder(model, ids, mask, capacity)
    return decoder, decoder.open(torch.tensor(prompt_index))


def plain(model, owner, tokens):
    return model.base_model(input_ids=torch.tensor([PROMPTS[owner] + tokens])).last_hidden_state[0, -1]


@torch.no_grad()
def test_rows_of_uneven_groups_see_what_a_plain_pass_sees_also_after_some_are_dropped(tiny_policy):
    model = tiny_policy.model.double()
    owners = [0, 0, 1, 1, 1, 2]
    decoder, hidden = opened(model, owners)
    rows = [(owner, []) for owner in owners]
    for step in range(6):
        for found, (owner, tokens) in zip(hidden, rows, strict=True):
            assert (found - plain(model, owner, tokens)).abs().max() < 1e-12
        if step == 2:  # the last row of prompt 0 stays, prompt 2 goes
            kept = [1, 2, 4]
            decoder.keep(torch.tensor(kept))
            rows = [rows[place] for place in kept]
        chosen = [3 + (7 * step + 5 * place) % 40 for place in range(len(rows))]
        for (_, tokens), token in zip(rows, chosen, strict=True):
            tokens.append(token)
        hidden = decoder.step(torch.tensor(chosen))
    assert decoder.length == 6


@torch.no_grad()
def test_a_prompt_is_held_once_and_buffers_are_sized_once(tiny_policy):
    decoder, _ = opened(tiny_policy.model, [0] * 4 + [1] * 4, capacity=9)
    layer = decoder._layers[0]
    assert layer.prompt_keys.shape[0] == len(PROMPTS)
    assert layer.keys.shape[0] == 8 and layer.keys.shape[2] == 9
    buffer = layer.keys.data_ptr()
    decoder.step(torch.arange(8))
    assert layer.keys.data_ptr() == buffer
    with pytest.raises(IndexError):
        for _ in range(9):
            decoder.step(torch.arange(8))
