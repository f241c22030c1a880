"""Operations on jobs: deploy, stop, restore, rollout and rescale."""
