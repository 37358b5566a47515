"""Whole models: do they train alike with the kernels put in, and how much faster?

``decoder``       a transformer written twice, in torch's parts and in those of ``kernels.nn``
``hugging_face``  a Llama and a BERT of the package transformers, with ``kernels.nn.replace``
``proof``         both, against torch eager and torch.compile
"""
