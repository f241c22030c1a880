"""What is done to a job: deploy, stop, restore, rollout and rescale, each with a way back."""
