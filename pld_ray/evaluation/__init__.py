"""Evaluation: episodes from stored init states, requests to runners, rows, `eval_info.json`."""
