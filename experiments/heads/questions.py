"""Questions of a task of lm-eval as JSON lines, for ``diabat heads analyse``.

    python -m experiments.heads.questions gac_sst2 --count 300 > sst2.jsonl
    diabat heads analyse MODEL sst2.jsonl

Documents are drawn without replacement from the training split, or from that of the evaluation if there is no other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.common import needed, parser

TASKS = Path(__file__).parent / "tasks"


def questions(task: Any, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Prompts with choices and the right one, or with the right answer alone where a text is generated."""
    documents = list(task.training_docs() if task.has_training_docs() else task.eval_docs)
    for document in random.Random(seed).sample(documents, min(count, len(documents))):
        prompt, target = task.doc_to_text(document), task.doc_to_target(document)
        if task.OUTPUT_TYPE == "multiple_choice":
            choices = task.doc_to_choice(document)
            answer = choices.index(target) if isinstance(target, str) else target
            prompt += task.config.target_delimiter
            yield {"prompt": prompt, "choices": choices, "answer": answer}
        else:
            right = target[0] if isinstance(target, list) else target
            yield {"prompt": prompt, "choices": [right], "answer": 0}


def main(arguments: list[str] | None = None) -> None:
    """Print the questions."""
    command = parser(__doc__)
    command.add_argument("task")
    command.add_argument("--count", type=int, default=300)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--task-folder", type=Path, default=TASKS)
    given = command.parse_args(arguments)
    TaskManager = needed("lm_eval.tasks", "eval").TaskManager
    own = TaskManager(include_path=str(given.task_folder), include_defaults=False)
    manager = own if given.task in own.all_tasks else TaskManager(include_path=str(given.task_folder))
    (task,) = manager.load([given.task])["tasks"].values()
    for question in questions(task, given.count, given.seed):
        print(json.dumps(question, ensure_ascii=False))


if __name__ == "__main__":
    main()
