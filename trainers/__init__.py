"""What runs on the workers: one DeepSpeed ViT trial, measured.

Knows no database and no HTTP; Ray appears in `ray_worker` only, so the same trial runs under torchrun or by hand.
"""
