"""The paper's contribution: mix-and-match, fine-tuning and selection around any learner."""
