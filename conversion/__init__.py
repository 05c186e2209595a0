"""BERT checkpoints of every published format, read and written without the framework behind them.

Installed as `hf_bert_impl.conversion`. Readers know bytes and no BERT; maps know BERT and no bytes.
"""
