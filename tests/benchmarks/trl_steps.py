"""The same steps by TRL's GRPOTrainer, one a turn: `python -m tests.benchmarks.trl_steps SETUP FOLDER`."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_core.scoring import score_completion
from grpo_core.tasks import Completion, load_task
from tests.benchmarks.memory import peak_mb, reset_peak, resident_mb
from tests.benchmarks.step_setups import SETUPS
from tests.benchmarks.turns import answer, timed, wait_for_turn

NUM_PROBLEMS = 512


class TurnTrainer(GRPOTrainer):
    """Waits for a turn before it samples, and answers with what came of it when it would sample again."""

    seconds: dict[str, float]
    started: float | None = None
    before_mb = 0.0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if self.started is not None:
            step_s = time.perf_counter() - self.started
            rollout_s = self.seconds["rollout_s"]
            lengths = self._metrics["train"]["completions/mean_length"]
            answer(
                sampling_s=self.seconds["sampling_s"],
                scoring_s=rollout_s - self.seconds["sampling_s"],
                update_s=step_s - rollout_s,
                step_s=step_s,
                completion_tokens=lengths[-1] * self.args.generation_batch_size,
                update_peak_mb=peak_mb() - self.before_mb,
            )
        wait_for_turn()
        self.seconds = {}
        self.started = time.perf_counter()
        result = timed(super()._generate_and_score_completions, self.seconds, "rollout_s")(inputs)
        reset_peak()
        return result

    def _generate(self, prompts: list[Any]) -> Any:
        return timed(super()._generate, self.seconds, "sampling_s")(prompts)


def main() -> None:
    """Trains until nobody asks any more."""
    setup, folder = SETUPS[sys.argv[1]], Path(sys.argv[2])
    config = setup.config(folder)
    task = load_task(config.task)
    torch.set_num_threads(config.compute.num_threads)
    torch.zeros(1)
    before_mb = resident_mb()
    tokenizer = AutoTokenizer.from_pretrained(config.policy.name)
    model = AutoModelForCausalLM.from_pretrained(config.policy.name, dtype=torch.float32)
    problems = task.train[:NUM_PROBLEMS]
    texts = [task.prompt(problem) for problem in problems]
    prompts = [[{"role": "user", "content": text}] for text in texts] if tokenizer.chat_template else texts

    def reward(completions: list[Any], place: list[int], **_: Any) -> list[float]:
        said = [each if isinstance(each, str) else each[0]["content"] for each in completions]
        return [
            score_completion(task, problems[at], Completion(text, True, 1)).reward
            for text, at in zip(said, place, strict=True)
        ]

    rollout, algorithm = config.rollout, config.algorithm
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=setup.trl_batch_size,
        gradient_accumulation_steps=rollout.completions_per_step // setup.trl_batch_size,
        generation_batch_size=rollout.completions_per_step,
        num_generations=algorithm.group_size,
        num_iterations=algorithm.updates_per_batch,
        max_completion_length=rollout.max_new_tokens,
        temperature=rollout.temperature,
        epsilon=algorithm.clip_range,
        beta=0.0,
        learning_rate=config.optim.lr,
        lr_scheduler_type="constant",
        max_grad_norm=config.optim.max_grad_norm,
        max_steps=100_000,
        logging_steps=100_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": prompts, "place": list(range(len(prompts)))})
    trainer = TurnTrainer(model, reward, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.before_mb = before_mb
    trainer.train()


if __name__ == "__main__":
    main()
