"""An adapter merged into its base model while it is sent: linear algebra on few tensors, by numpy.

rounding.py (numbers) · lora.py (the adapter's pairs) · bases.py (where the
base's files are) · layout.py (which bytes a merged model has) · archive.py (as tar) · service.py (decisions).
"""
