"""Games on the heads of Hugging Face decoders, from the command line: questions, templates, evaluation."""

from diabat.runs.heads.questions.sets import QuestionSet, read_question_sets

__all__ = ["QuestionSet", "read_question_sets"]
