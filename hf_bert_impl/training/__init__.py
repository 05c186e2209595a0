"""Recipes on the Trainer of transformers: pre-training and fine-tuning."""
