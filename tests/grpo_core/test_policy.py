import pytest
import torch

from grpo_core.config import PolicyConfig, TaskConfig
from grpo_core.policy import load_policy
from grpo_core.tasks import load_task


def test_the_tiny_policy_is_an_ordinary_model(task, tiny_policy, tmp_path):
    tiny_policy.save(tmp_path)
    loaded = load_policy(PolicyConfig(name=str(tmp_path)), task)
    ids = tiny_policy.encode_prompt(task.prompt(task.train[3]))
    assert loaded.encode_prompt(task.prompt(task.train[3])) == ids
    assert loaded.decode(ids) == task.prompt(task.train[3])
    assert loaded.eos_ids == tiny_policy.eos_ids == (1,)
    inputs = torch.tensor([ids])
    assert torch.equal(loaded.model(input_ids=inputs).logits, tiny_policy.model(input_ids=inputs).logits)


def test_equal_seeds_give_equal_weights(task):
    first, second = (load_policy(PolicyConfig(), task) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


def test_a_chat_template_is_used_where_there_is_one(task, tiny_policy):
    tiny_policy.tokenizer.chat_template = "{% for m in messages %}Now {{ m.content }} Then {% endfor %}"
    assert tiny_policy.decode(tiny_policy.encode_prompt("Ana has")) == "Now Ana has Then"


def test_tiny_refuses_a_task_without_a_closed_vocabulary(shared_data):
    gsm8k = load_task(TaskConfig(name="gsm8k", path=str(shared_data / "gsm8k")))
    with pytest.raises(ValueError, match=r"policy.name='tiny'.*grade_school"):
        load_policy(PolicyConfig(), gsm8k)


@pytest.mark.parametrize("name", ["no-such-org/no-such-model", "/no/such/folder"])
def test_a_model_that_cannot_be_had_names_the_way_out(task, name):
    with pytest.raises(ValueError, match=r"policy.name=.*path of a local folder"):
        load_policy(PolicyConfig(name=name), task)
