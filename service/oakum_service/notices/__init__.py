"""Notices: what became of trainers, sent to their recipients by webhook or e-mail.

`outbox.py` records a notice in the transaction that makes it true. `sender.py` sends recorded notices from threads
of its own and repeats failed attempts until the notice is accepted or given up. `webhook.py` and `mail.py` are the
two channels. A slow recipient delays other notices only, never training.
"""
