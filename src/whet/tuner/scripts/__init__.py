"""Tune a training script that stays as it is: whet tune -- python train.py."""
